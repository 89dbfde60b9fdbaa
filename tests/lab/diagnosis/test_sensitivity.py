"""Layer sensitivity on networks in which the fragile layer is planted."""

import json

import pytest
import torch
from torch import nn

import codtdq
from codtdq.cli.main import main
from codtdq.declarations import Declaration
from codtdq.errors import ConfigError, DataError
from codtdq.lab.diagnosis.protection import _shortest, propose
from codtdq.lab.diagnosis.rowfile import RowFile
from codtdq.lab.diagnosis.sensitivity import SensitivityRow, measure_sensitivity
from codtdq.lab.diagnosis.switchboard import Switchboard
from codtdq.operators import QuantOperator
from small_nets import simulate

WIDTH = 32
NAIVE = codtdq.preset("w4a4", float_storage="fp32")


class Chain(nn.Module):
    """Three rotations. Before `fragile` one channel is blown up and after it divided away again:
    exact in float, but a range shared by the tensor then leaves the other channels no code.
    """

    quantization = Declaration(roles={"calm": "attention", "fragile": "mlp", "last": "linear"})

    def __init__(self, outlier=1000.0):
        super().__init__()
        self.calm, self.fragile, self.last = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.scale = torch.ones(WIDTH)
        self.scale[0] = outlier
        generator = torch.Generator().manual_seed(0)
        for layer in (self.calm, self.fragile, self.last):
            nn.init.orthogonal_(layer.weight, generator=generator)
        with torch.no_grad():
            self.fragile.weight[:] = torch.eye(WIDTH)  # exact in 4 bits: the input alone is hurt

    def forward(self, x):
        return self.last(self.fragile(self.calm(x) * self.scale) / self.scale)


@pytest.fixture
def chain():
    return Chain().eval()


@pytest.fixture
def score(chain):
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = chain(x)

    def closeness(model):
        with torch.no_grad():
            return 1 - ((model(x) - exact).square().sum() / exact.square().sum()).item()

    return closeness


def test_switching_is_exact_and_is_undone(chain):
    x = torch.randn(4, WIDTH)
    board = Switchboard(chain, NAIVE)
    held = board.model.fragile  # a reference from elsewhere follows
    with torch.no_grad():
        full = simulate(chain, NAIVE)(x)
        with board.only(["fragile"]) as model:
            assert isinstance(held, QuantOperator)
            assert not isinstance(model.calm, QuantOperator)
        with board.all_but([]) as model:
            assert torch.equal(model(x), full)
        assert type(held) is nn.Linear
        assert torch.equal(board.model(x), chain(x))
    with pytest.raises(RuntimeError, match="in the block"), board.all_but(["calm"]):
        raise RuntimeError("in the block")
    assert all(type(m) is nn.Linear for m in (held, board.model.calm, board.model.last))


def test_the_planted_layer_is_found(chain, score):
    result = measure_sensitivity(chain, NAIVE, score)
    assert result.float_score == 1.0
    assert result.rows[0].unit == "fragile"
    worst, *others = result.rows
    # one channel of 32 survives: almost all is lost by this layer alone, little by the others
    assert worst.drop > 0.9 and worst.gain > 0.8
    assert all(abs(row.drop) < 0.1 for row in others)
    for row in result.rows:
        assert row.drop == pytest.approx(result.float_score - row.only)
        assert row.gain == pytest.approx(row.without - result.quantized_score)
        assert row.harm == pytest.approx((row.drop + row.gain) / 2)


def test_roles_come_from_the_plan(chain, score):
    result = measure_sensitivity(chain, NAIVE, score, by="role")
    assert {row.unit: row.operators for row in result.rows} == {
        "mlp": ("fragile",),
        "attention": ("calm",),
        "linear": ("last",),
    }
    assert result.rows[0].unit == "mlp"
    with pytest.raises(ConfigError, match="by is 'name'; accepted: layer, role"):
        measure_sensitivity(chain, NAIVE, score, by="name")


@pytest.mark.parametrize(
    ("outlier", "skip", "eight"),
    [
        (1000.0, ("fragile",), ()),  # beyond 8 bits as well: only float saves it
        (20.0, (), ("fragile",)),  # 8 bits are enough
        (1.0, (), ()),  # nothing is planted: nothing to protect
    ],
)
def test_the_proposal_protects_what_is_planted_and_no_more(outlier, skip, eight):
    chain = Chain(outlier).eval()
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))
    exact = chain(x).detach()

    def score(model):
        with torch.no_grad():
            return 1 - ((model(x) - exact).square().sum() / exact.square().sum()).item()

    result = measure_sensitivity(chain, NAIVE, score)
    proposal = propose(chain, NAIVE, result, score, budget=0.1)
    assert (proposal.skipped, proposal.eight) == (skip, eight)
    assert proposal.config.skip_patterns == skip
    assert proposal.config.keep_a8_patterns == eight
    assert proposal.met and proposal.drop <= 0.1
    # the proposal was measured as it will be used
    again = score(simulate(chain, proposal.config))
    assert proposal.score == pytest.approx(again, abs=1e-12)


def test_a_budget_out_of_reach_is_said(chain, score):
    result = measure_sensitivity(chain, NAIVE, score)
    result.float_score += 1.0  # no config can come near
    proposal = propose(chain, NAIVE, result, score, budget=0.0)
    assert not proposal.met and set(proposal.skipped) == {"calm", "fragile", "last"}
    with pytest.raises(ConfigError, match="budget is -1"):
        propose(chain, NAIVE, result, score, budget=-1)


@pytest.mark.parametrize("count", [0, 1, 5, 8, 13])
def test_the_shortest_prefix_is_found_with_few_trials(count):
    for wanted in range(count + 1):
        tried = []

        def enough(k, wanted=wanted, tried=tried):
            tried.append(k)
            return k >= wanted

        assert _shortest(count, enough) == wanted
        assert len(tried) <= 9
    assert _shortest(count, lambda k: False) == count


def test_rows_of_an_earlier_run_are_taken_over(chain, score):
    stored, calls = [], []

    def counted(model):
        calls.append(model)
        return score(model)

    full = measure_sensitivity(chain, NAIVE, counted, on_row=stored.append)
    assert len(calls) == 2 + 2 * 3 and len(stored) == 3
    calls.clear()
    kept = [SensitivityRow.from_dict(json.loads(json.dumps(r.to_dict()))) for r in stored[:2]]
    again = measure_sensitivity(chain, NAIVE, counted, done=kept)
    assert len(calls) == 2 + 2 * 1
    assert again.to_dict() == full.to_dict()


def test_a_row_file_survives_a_cut_and_refuses_another_run(tmp_path):
    path = tmp_path / "x.partial"
    rows = RowFile(path, {"by": "layer"}, resume=False)
    assert not path.exists()  # a run that fails before its first row leaves nothing behind
    rows.append({"unit": "a"})
    rows.append({"unit": "b"})
    with path.open("a") as stream:
        stream.write('{"unit": "c"')  # killed while writing
    again = RowFile(path, {"by": "layer"}, resume=True)
    assert again.rows == [{"unit": "a"}, {"unit": "b"}]
    again.append({"unit": "d"})
    again.append({"unit": "e"})
    assert [r["unit"] for r in RowFile(path, {"by": "layer"}, resume=True).rows] == list("abde")
    with pytest.raises(DataError, match=r"belongs to another run \(different by\); delete it"):
        RowFile(path, {"by": "role"}, resume=True)
    RowFile(path, {"by": "role"}, resume=False).append({"unit": "f"})
    assert RowFile(path, {"by": "role"}, resume=True).rows == [{"unit": "f"}]
    path.write_text("")
    with pytest.raises(DataError, match="cannot be resumed"):
        RowFile(path, {"by": "role"}, resume=True)


def test_the_command_writes_a_config_that_quantize_takes(tmp_path, capsys):
    out = tmp_path / "spared.json"
    common = ["--model", "cfrn-small", "--limit", "1"]
    argv = ["sensitivity", *common, "--method", "w4a4", "--by", "role", "--budget", "0.05"]
    assert main([*argv, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # 4-bit inputs with one range are what breaks the convolutions of this network
    assert found["rows"][0]["unit"] == "conv"
    assert found["proposal"]["met"]
    assert not (tmp_path / "spared.json.partial").exists()
    packed = tmp_path / "packed"
    assert (
        main(["quantize", "--model", "cfrn-small", "--config", str(out), "--out", str(packed)]) == 0
    )
    capsys.readouterr()
    assert main(["eval", "--model", str(packed), "--limit", "1", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)["metrics"]["S"]
    assert scored == pytest.approx(found["proposal"]["score"], abs=2e-3)  # the engine's rounding


def test_ctrl_c_keeps_finished_rows_and_resume_goes_on(tmp_path, capsys, monkeypatch):
    calls = []

    def scorer(data, stop=7):
        def score(model):
            calls.append(model)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return 0.5

        return score

    monkeypatch.setattr("codtdq.lab.diagnosis.sensitivity.metric_scorer", scorer)
    out = tmp_path / "x.json"
    argv = ["sensitivity", "--method", "w4a4", "--by", "role", "--limit", "1", "--out", str(out)]
    assert main(argv) == 130
    assert "2 rows are kept in" in capsys.readouterr().err
    assert not out.exists()
    kept = (tmp_path / "x.json.partial").read_text().splitlines()
    assert len(kept) == 1 + 2  # two scores for the ends, two for each row, the seventh fell
    calls.clear()
    monkeypatch.setattr(
        "codtdq.lab.diagnosis.sensitivity.metric_scorer", lambda data: scorer(data, stop=0)
    )
    assert main([*argv, "--resume"]) == 0
    roles = 6
    assert len(calls) == 2 + 2 * (roles - 2) + 1  # and one proposal, which needs no protection
    assert json.loads(out.read_text())["skip_patterns"] == []
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_the_paper_s_setting_is_the_default(capsys, monkeypatch):
    monkeypatch.setattr(
        "codtdq.lab.diagnosis.sensitivity.metric_scorer", lambda data: lambda model: 0.5
    )
    assert main(["sensitivity", "--by", "role", "--limit", "1"]) == 0
    assert capsys.readouterr().out.startswith("cfrn-small, cod-tdq, camosynth, 1 images")


def test_wrong_usage_is_one_line(tmp_path, capsys):
    assert main(["sensitivity", "--resume"]) == 2
    assert "--resume needs --out" in capsys.readouterr().err
    out = tmp_path / "x.json"
    file = tmp_path / "plus.json"
    file.write_text('{"name": "cod-tdq-plus"}')
    for setting in (["--method", "repq-vit"], ["--config", str(file)]):
        assert main(["sensitivity", *setting, "--out", str(out)]) == 2
        message = capsys.readouterr().err
        assert "needs a variant of the paper's method" in message and message.count("\n") == 1
    file.unlink()
    assert main(["sensitivity", "--budget", "-1", "--out", str(out)]) == 2
    assert "budget is -1.0; accepted: a metric difference" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
