"""Label-free selection: terms with known values, and choices that are planted."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import codtdq
from codtdq.cli.main import main
from codtdq.errors import CalibrationError, ConfigError
from codtdq.lab.diagnosis.boundary import BoundaryProtocol, boundary_band
from codtdq.lab.selection import (
    PAPER_SETTING,
    SCORES,
    WEIGHTS,
    Candidate,
    Scored,
    Selection,
    Selector,
    Terms,
    candidate_grid,
    select,
    select_per_layer,
)
from codtdq.lab.selection.band import PredictedBand
from codtdq.lab.selection.candidates import apply_config
from codtdq.lab.selection.features import SAMPLES, Drift, FloatReference, sampled
from codtdq.lab.selection.score import bounded
from codtdq.lab.selection.statistics import InputStatistics
from small_nets import images, simulate, small_net

# planted inputs differ more than whole multipliers span
GROUPS = codtdq.preset(
    "cod-tdq-guarded", float_storage="fp32", weight_bits=8, first_layer="float", scales="float"
)


class Square(nn.Module):
    """Reads an image [B, 3, H, W] and predicts its first channel: the answer is known."""

    def __init__(self):
        super().__init__()
        self.lift, self.head = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 1, 1, bias=False)
        with torch.no_grad():
            self.lift.weight[:] = 0
            self.lift.weight[:, 0] = 1
            self.head.weight[:] = 1 / 8

    def forward(self, x):
        return self.head(self.lift(x))


def square_image(size=24, low=8, high=16):
    image = -4 * torch.ones(1, 3, size, size)
    image[..., low:high, low:high] = 4
    return image


class Two(nn.Module):
    """Two operators with planted inputs [B, N, 128].

    blocks: magnitudes 1, 50, 1, 50, ... in runs of 16 channels: a group of 32 drowns the small run.
    signs: +1 and -1 in turn: every group size quantizes it exactly, with the same statistics.
    """

    def __init__(self):
        super().__init__()
        self.blocks, self.signs = nn.Linear(128, 8), nn.Linear(128, 8)
        scale = torch.ones(8, 16)
        scale[1::2] = 50
        self.register_buffer("scale", scale.flatten())
        self.register_buffer("alternating", torch.tensor([1.0, -1.0]).repeat(64))
        with torch.no_grad():
            self.blocks.weight.div_(self.scale)  # every channel matters

    def forward(self, image):
        rows = image.flatten(1)[:, : 4 * 128].reshape(-1, 4, 128)
        return self.blocks(rows * self.scale) + self.signs(torch.sign(rows + 9) * self.alternating)


def noise(count=2):
    return list(torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(3)))


@pytest.fixture
def two():
    torch.manual_seed(0)
    return Two().eval()


def batches(count=2):
    return [image.unsqueeze(0) for image in noise(count)]


def test_weights_are_a_mean_and_the_score_is_their_sum():
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    terms = Terms(logits=0.1, features=0.2, eta=0.3, rho0=0.4, boundary=0.5)
    assert terms.score == pytest.approx(0.04 + 0.08 + 0.015 + 0.02 + 0.05)
    assert Terms(1, 1, 1, 1, 1).score == pytest.approx(1)
    assert (bounded(0), bounded(1), bounded(3)) == (0, 0.5, 0.75)
    assert bounded(float("inf")) == bounded(float("nan")) == 1


def test_the_papers_score_has_its_four_terms_alike():
    assert set(SCORES["paper"]) == {"features", "eta", "rho0", "boundary"}
    assert set(SCORES["paper"].values()) == {0.25}
    terms = Terms(logits=0.9, features=0.2, eta=0.3, rho0=0.4, boundary=0.5)
    assert terms.weighted("paper") == pytest.approx(0.35) == terms.to_dict("paper")["score"]
    assert terms.weighted("extended") == terms.score == terms.to_dict()["score"]
    other = Terms(logits=0.0, features=0.2, eta=0.3, rho0=0.4, boundary=0.6)
    assert terms.below(other, "paper") and not terms.below(other)  # its logits are worse
    assert not terms.below(terms, "paper")


def scored(group, tau, zero_ratio, features, eta):
    terms = Terms(logits=0.5, features=features, eta=eta, rho0=0.2, boundary=0.2)
    return Scored(Candidate(group, tau, zero_ratio), terms, 5.0)


def test_what_became_of_the_papers_setting():
    first, last = scored(16, 1.0, 0.2, 0.1, 0.1), scored(64, 1.0, 0.2, 0.1, 0.6)
    ours = scored(32, 1.0, 0.2, 0.1, 0.3)
    assert ours.candidate == PAPER_SETTING
    found = Selection(GROUPS, 1, [first, ours, last], "paper").to_dict()["paper_setting"]
    assert (found["selected"], found["rank"], found["of"]) == (False, 2, 3)
    assert found["score"] == pytest.approx(0.2) and found["lower_in_every_term"] == 1
    assert Selection(GROUPS, 1, [ours, last], "paper").paper_setting.selected
    assert Selection(GROUPS, 1, [first, last], "paper").paper_setting is None


def test_the_papers_score_hardly_sees_what_clipping_does(two):
    """The two settings of the test on clipping below: the causes fall as far as drift rises."""
    selector = Selector(two, GROUPS.replace(projection="min"), batches())
    candidates = [Candidate(16, None, 0.02), Candidate(16, None, None)]
    found = select(selector, candidates, score="paper")
    assert found.score == "paper"
    free, clipped = (one.terms for one in found.scored)
    assert clipped.eta < free.eta and clipped.rho0 < free.rho0
    assert clipped.features > 5 * free.features and clipped.logits > 5 * free.logits
    assert 0 < clipped.weighted("paper") - free.weighted("paper") < 0.005
    assert clipped.weighted("extended") - free.weighted("extended") > 0.05
    with pytest.raises(ConfigError, match="accepted: extended, paper"):
        select(selector, candidates, score="papers")


def test_drift_is_the_centred_relative_error():
    model = Square().eval()
    reference = FloatReference(model, [square_image()])
    drift = Drift(reference)
    exact = reference.features[0]
    # every feature moved by a constant d: error n d^2 over the centred power of the float feature
    moved = {name: [values + 2.0] for name, values in exact.items()}
    drift.add(0, moved, reference.logits[0] + 2.0)
    share = (8 * 8) / (24 * 24)
    power = 64 * share * (1 - share)  # of +-4
    assert drift.logits() == pytest.approx(4 / power, rel=1e-6)
    centred = ((exact["lift"] - exact["lift"].mean()).square().mean()).item()
    assert drift.features()["lift"] == pytest.approx(4 / centred, rel=1e-6)
    assert Drift(reference).logits() == 0


def test_samples_are_bounded_and_at_fixed_places():
    large = torch.arange(10**6, dtype=torch.float32)
    kept = sampled(large)
    assert len(kept) == SAMPLES
    assert torch.equal(kept, sampled(large.reshape(1, 1000, 1000)))
    assert torch.equal(sampled(large[:7]), large[:7])


def test_a_candidate_is_what_quantize_would_make():
    model, x = small_net(), images(1)
    base = codtdq.preset("cod-tdq", float_storage="fp32")
    quantized = simulate(model, base)
    for candidate in (Candidate(16, None, 0.4), Candidate(8, 0.5, None), Candidate(32, 1.0, 0.2)):
        config = candidate.config(base)
        apply_config(quantized, model, config)
        with torch.no_grad():
            assert torch.equal(quantized(x), simulate(model, config)(x)), candidate


def test_the_grid_has_every_combination_once():
    grid = candidate_grid([16, 16, 32], [1.0, None], [None])
    assert [str(c) for c in grid] == [
        "g=16 tau=1 zr=none",
        "g=16 tau=none zr=none",
        "g=32 tau=1 zr=none",
        "g=32 tau=none zr=none",
    ]


def test_the_band_is_that_of_the_prediction():
    model = Square().eval()
    reference = FloatReference(model, [square_image()])
    band = PredictedBand(model, reference, BoundaryProtocol(r_in=1, r_out=1))
    mask = np.zeros((24, 24), np.uint8)
    mask[8:16, 8:16] = 255
    expected = boundary_band(mask, 1, 1)
    for operator in ("lift", "head"):
        found = band.labels(0, operator, 0, 24 * 24)
        assert torch.equal(found.reshape(24, 24), torch.from_numpy(expected))
    # dilated by one disc: 8x8 and a rim without corners; eroded by one: 6x6
    assert expected.sum() == (64 + 4 * 8) - 36


def test_an_empty_prediction_has_no_band():
    model = Square().eval()
    band = PredictedBand(model, FloatReference(model, [-torch.ones(1, 3, 24, 24)]))
    assert not band.labels(0, "lift", 0, 24 * 24).any()


@pytest.mark.parametrize("mode", ["per_token_group", "per_tensor"])
def test_boundary_rho_counts_tokens_on_the_band_only(mode):
    """Weak evidence beside a strong channel is planted on the band and nowhere else."""
    model = Square().eval()
    image = square_image()
    config = codtdq.CodTdqConfig(
        act_modes=dict.fromkeys(("linear", "conv", "depthwise", "first"), mode),
        tau=None,
        zero_ratio=None,
        weight_bits=None,
        first_layer="quantize",
        skip_patterns=["head"],
        float_storage="fp32",
    )
    reference = FloatReference(model, [image])
    band = PredictedBand(model, reference)
    on_band = band.labels(0, "lift", 0, 24 * 24).reshape(24, 24)
    image[0, 1:] = torch.where(on_band, 0.1, 4.0)  # 0.1 of 4 is below half a step (4 / 14)
    statistics = InputStatistics(quantized := simulate(model, config), band)
    with torch.inference_mode(), statistics.listening(0):
        quantized(image)
    assert statistics.boundary_rho0() == pytest.approx(2 / 3)  # two channels of three are lost
    share = on_band.float().mean().item()
    assert statistics.rho0() == pytest.approx(2 / 3 * share, rel=1e-5)


def test_the_setting_that_keeps_the_evidence_wins(two):
    selector = Selector(two, GROUPS, batches())
    selection = select(selector, candidate_grid([16, 32, 64], [None], [None]))
    assert selection.chosen.candidate == Candidate(16, None, None)
    terms = {one.candidate.group: one.terms for one in selection.scored}
    assert terms[16].logits < 0.02 < 0.2 < terms[32].logits
    assert terms[16].rho0 < terms[32].rho0


def test_clipping_that_lowers_rho_does_not_win(two):
    """C2 at 0.02 under Eq. dcrp clips nearly everything: rho_0 falls, and the answer with it."""
    selector = Selector(two, GROUPS.replace(projection="min"), batches())
    found = select(selector, [Candidate(16, None, 0.02), Candidate(16, None, None)])
    assert found.chosen.candidate.zero_ratio is None
    free, clipped = (one.terms for one in found.scored)
    assert clipped.rho0 < free.rho0 and clipped.logits > free.logits


def test_per_layer_choices_are_planted(two):
    candidates = candidate_grid([16, 32, 64], [None], [None])
    selector = Selector(two, GROUPS, batches())
    config, choices = select_per_layer(selector, candidates)
    chosen = {choice.name: choice.candidate.group for choice in choices}
    # where all are equal, fewer scales are cheaper
    assert chosen == {"blocks": 16, "signs": 64}
    plan = codtdq.plan(two, config)
    assert plan.site("blocks").activation.group_size == 16
    assert plan.site("signs").activation.group_size == 64
    assert codtdq.CodTdqConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    # and the mixture is as good as small groups everywhere, at fewer bits
    terms, bits = selector.score(config)
    small, more = selector.score(Candidate(16, None, None).config(GROUPS))
    assert terms.logits == pytest.approx(small.logits) and bits < more


def test_bounds_that_the_base_keeps_away_stay_away():
    model = small_net()
    base = codtdq.preset(
        "cod-tdq",
        float_storage="fp32",
        act_modes={
            "linear": "per_token_group",
            "conv": "per_tensor",
            "depthwise": "per_channel",
            "first": "per_tensor",
        },
    )
    selector = Selector(model, base, [images(1)])
    config, choices = select_per_layer(selector, candidate_grid([32], [0.5, None], [0.2, None]))
    bounded_operators = {choice.name for choice in choices}
    assert bounded_operators == {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"}
    assert codtdq.plan(model, config).site("head").activation.tau is None


def test_the_model_and_its_operators_are_left_as_they_were(two):
    selector = Selector(two, GROUPS, batches())
    before = {n: op.site for n, op in selector.quantized.named_modules() if hasattr(op, "site")}
    select_per_layer(selector, candidate_grid([16, 32], [None], [None]))
    after = {n: op.site for n, op in selector.quantized.named_modules() if hasattr(op, "site")}
    assert before == after
    assert all(not m._forward_hooks for m in two.modules())
    assert type(two.blocks) is nn.Linear


def test_unfit_bases_and_inputs_are_errors(two):
    with pytest.raises(ConfigError, match="static ranges"):
        Selector(two, codtdq.preset("per-tensor"), batches())
    with pytest.raises(ConfigError, match="no token groups"):
        Selector(two, codtdq.preset("w4a4"), batches())
    with pytest.raises(ConfigError, match="has io_correction"):
        Selector(two, GROUPS.replace(io_correction="bias"), batches())
    with pytest.raises(ConfigError, match="keeps activations float"):
        Selector(two, codtdq.preset("fp32"), batches())
    with pytest.raises(CalibrationError, match="at least one"):
        Selector(two, GROUPS, [])
    with pytest.raises(CalibrationError, match="image tensors; found dict"):
        Selector(two, GROUPS, [{"image": noise()[0]}])
    with pytest.raises(ConfigError, match="no candidates"):
        select(Selector(two, GROUPS, batches()), [])


def test_the_command_needs_no_masks_and_its_config_goes_into_quantize(tmp_path, capsys):
    from PIL import Image

    from codtdq.data import open_dataset

    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(open_dataset("camosynth/calib", limit=1)[0].image).save(folder / "one.png")
    out = tmp_path / "selected.json"
    argv = [
        "select",
        "--g",
        "16,32",
        "--tau",
        "none",
        "--zero-ratio",
        "0.2,none",
        "--calibration",
        str(folder),
        "--per-layer",
        "--out",
        str(out),
        "--json",
    ]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    scores = [row["score"] for row in found["candidates"]]
    assert len(scores) == 4 and scores == sorted(scores)
    row = found["chosen"]
    assert row["score"] == pytest.approx(sum(WEIGHTS[term] * row[term] for term in WEIGHTS))
    assert found["config"] == json.loads(out.read_text())
    packed = tmp_path / "packed"
    assert main(["quantize", "--config", str(out), "--out", str(packed), "--json"]) == 0
    used = json.loads(capsys.readouterr().out)["config"]
    assert used == found["config"] and len(used["layer_overrides"]) > 100


def test_the_command_says_whether_the_papers_setting_is_selected(capsys):
    argv = ["select", "--score", "paper", "--calibration-images", "1", "--zero-ratio", "0.2"]
    assert main([*argv, "--g", "32", "--tau", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cfrn-small, cod-tdq, 1 images") and "logits" not in out
    assert "the paper's setting (g=32 tau=1 zr=0.2) is the one selected" in out
    assert main([*argv, "--g", "16,32", "--tau", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["base"] == "cod-tdq" and found["weights"] == SCORES["paper"]
    row, paper = found["chosen"], found["paper_setting"]
    mean = (row["features"] + row["eta"] + row["rho0"] + row["boundary"]) / 4
    assert found["score"] == "paper" and row["score"] == pytest.approx(mean)
    assert paper["selected"] == (row["act_group_size"] == 32) and paper["of"] == 2
    assert main([*argv, "--g", "16", "--tau", "1"]) == 0
    assert "is not among the candidates" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--score", "paper", "--per-layer"], "leave --per-layer out"),
        (["--base", "w4a4"], "no token groups"),
        (["--base", "cod-tdq-plus"], "is a PlusConfig, which has no tau and zero_ratio"),
        (["--base", "cod-tdq-gaurded"], "did you mean 'cod-tdq-guarded'?"),
        (["--g", "0"], "act_group_size is 0"),
        (["--tau", "-1"], "tau is -1.0"),
        (["--zero-ratio", "2"], "zero_ratio is 2.0"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(argv, message, tmp_path, capsys):
    out = tmp_path / "x.json"
    assert main(["select", "--calibration-images", "1", *argv, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not out.exists()
