"""`codtdq bench weights` and `operators`: known statistics, counts by family, and the commands."""

import json
from functools import partial

import pytest
import torch

import codtdq
from codtdq.cli import main
from codtdq.errors import ConfigError
from codtdq.lab.bench.inventory import run_inventory
from codtdq.lab.bench.weights import run_weights
from codtdq.lab.diagnosis.weights import chosen_weights
from codtdq.models import build_model
from small_nets import small_net


@pytest.fixture
def run(run):
    """Call `codtdq bench`."""
    return partial(run, "bench")


def test_statistics_of_a_planted_weight():
    net = small_net()
    with torch.no_grad():
        values = torch.linspace(-1, 1, net.mlp.fc1.weight.numel())
        values[-1] = 7.0  # one outlier: the scale of its channel on a 4-bit grid is 1
        net.mlp.fc1.weight.copy_(values.reshape_as(net.mlp.fc1.weight))
    found = run_weights(net, ["w4a4", "w8a8"], layers=["mlp.fc?", "attn.qkv"])
    assert found["layers"] == ["mlp.fc1", "mlp.fc2", "attn.qkv"]
    rows = {(row["layer"], row["method"]): row for row in found["rows"]}
    assert [row["method"] for row in found["rows"][:3]] == ["fp32", "w4a4", "w8a8"]
    exact = rows["mlp.fc1", "fp32"]
    weight = net.mlp.fc1.weight.double()
    assert exact["mean"] == pytest.approx(weight.mean().item())
    assert exact["std"] == pytest.approx(weight.std(correction=0).item())
    assert exact["absmax"] == 7.0 and exact["p99"] == pytest.approx(0.98, abs=1e-3)
    for method in ("w4a4", "w8a8"):
        used = dict(codtdq.quantize(net, method, backend="reference").named_modules())["mlp.fc1"]
        assert rows["mlp.fc1", method]["std"] == pytest.approx(
            used.weight.double().std(correction=0).item()
        )
    fine, coarse = rows["mlp.fc1", "w8a8"], rows["mlp.fc1", "w4a4"]
    assert abs(fine["std"] - exact["std"]) < abs(coarse["std"] - exact["std"])


def test_layers_by_pattern():
    net = small_net()
    assert chosen_weights(net, ["*.qkv", "attn.*"]) == ["attn.qkv", "attn.proj"]
    assert chosen_weights(net, []) == ["attn.qkv", "mlp.fc1"]  # the largest of each role
    with pytest.raises(ConfigError, match=r"--layers blocks\.9\.qkv: .* e\.g\. attn\.qkv \("):
        chosen_weights(net, ["*.fc1", "blocks.9.qkv"])


def test_the_papers_layers_have_their_names_in_cfrn():
    from codtdq.lab.tables.published import published_rows

    names = dict.fromkeys(row["layer"] for row in published_rows("weight_statistics"))
    found = chosen_weights(
        build_model("cfrn", empty=True),
        ["*.layers.2.blocks.10.attn.qkv", "*.layers.2.blocks.0.mlp.fc1"],
    )
    assert found == list(names)


def test_inventory_counts_what_the_plan_and_the_forward_pass_have():
    model = build_model("cfrn-small")
    found = run_inventory(model, "cod-tdq")
    families = {family["family"]: family for family in found["families"]}
    sites = codtdq.plan(model, codtdq.config("cod-tdq", model=model)).sites
    counted = sum(families[name]["count"] for name in ("attention", "mlp", "linear", "conv"))
    assert counted == len(sites) == 124 and "other" not in families
    assert families["attention"]["count"] == 2 * 10  # qkv and proj of ten blocks
    assert families["mlp"]["rule"] == "W4A4 per token group"
    assert families["conv"]["rule"].startswith("80 W4A4 per channel; 1 W4A8 per channel")
    assert families["softmax"]["count"] == 10 and families["softmax"]["quantized"] == 0
    assert families["norm"]["types"] == "29 LayerNorm, 7 GroupNorm"
    assert sum(part["count"] for part in found["modules"]) == 124
    kept = {f["family"]: f for f in run_inventory(model, "fp32")["families"]}
    assert kept["attention"]["quantized"] == 0 and kept["attention"]["rule"] == "float"


def test_commands_write_what_the_table_reads(run, tmp_path, capsys):
    out = tmp_path / "weights.json"
    code, text, _ = run(
        "weights", "--methods", "w4a4", "--layers", "*.layers.0.blocks.0.attn.qkv", "--out", out
    )
    assert code == 0 and "W4A4 (naive) | " in text and f"written to {out}" in text
    assert main(["table", str(out), "--table", "weights"]) == 0
    # the table is wrapped to the width of a terminal, if there is one
    assert " ".join(capsys.readouterr().out.split()) in " ".join(text.split())
    document = json.loads(out.read_text())
    assert document["weights"] == "shipped" and len(document["rows"]) == 2
    other = tmp_path / "operators.json"
    code, text, _ = run("operators", "--method", "w4a4", "--out", other)
    assert code == 0 and "Attention Linear projections" in text and "W4A4 per tensor" in text
    assert main(["table", str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["records"][0]["count"] == 20


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["weights", "--layers", "*.nothing"], "--layers *.nothing: no Linear or Conv"),
        (["weights", "--methods", "w4a5"], "w4a5"),
        (["weights", "--model", "cfrn"], "--untrained"),
        (["operators", "--method", "cod-tdqq"], "did you mean"),
        (["operators", "--out", "."], "is a directory"),
    ],
)
def test_wrong_usage_is_one_line(argv, message, run):
    code, out, err = run(*argv)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
