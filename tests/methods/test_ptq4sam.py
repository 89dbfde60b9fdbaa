"""PTQ4SAM: averaged ranges, searched weight grids, both variants."""

import pytest
import torch
from torch import nn

import codtdq
from codtdq.methods import apply_method, method_info
from codtdq.methods.collect import InputStats
from codtdq.methods.rivals.bimodal import flip_columns, flips_of
from codtdq.methods.rivals.learning import DroppingInput
from codtdq.methods.rivals.sam_grids import averaged_grid, searched_weight
from codtdq.operators import listening, quant_operators
from codtdq.schemes.inputs import Rescaled, StaticUniform
from codtdq.schemes.weights import UniformWeight
from small_nets import images, small_net

CALIBRATION = [images(16), images(16, seed=1)]
WIDE = {"weight_bits": 8, "act_bits": 8}
FLOAT = {"weight_bits": None, "act_bits": None}


def sqnr(model, other, x):
    truth, found = model(x), other(x)
    return 10 * torch.log10(truth.square().sum() / (found - truth).square().sum()).item()


@pytest.fixture(scope="module")
def both():
    return {m: apply_method(small_net(), m, CALIBRATION) for m in ("ptq4sam", "ptq4sam-s")}


def test_ranges_are_averages_of_images():
    low, high = torch.tensor([[-1.0, 0], [-3, -2]]), torch.tensor([[1.0, 5], [2, 1]])
    stats = InputStats(low.amin(0), high.amax(0), low, high, torch.zeros(1, 2))
    grid = averaged_grid(stats, 4)
    assert float(grid.step) == pytest.approx((3.5 + 2) / 15)  # (5 + 2) / 2 and (-1 - 3) / 2
    assert float(grid.zero) == round(2 / float(grid.step))
    per_channel = averaged_grid(stats, 4, per_channel=True)
    assert per_channel.step.tolist() == pytest.approx([3.5 / 15, 4 / 15])


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_weight_search_beats_the_plain_range(bits):
    weight = torch.randn(7, 5, 3, 3, generator=torch.Generator().manual_seed(0)) ** 3
    errors = [
        (store.dequantize() - weight).abs().pow(2.4).flatten(1).mean(1)
        for store in (
            UniformWeight.minmax(weight, bits, symmetric=False),
            searched_weight(weight, bits, exhaustive=False),
            searched_weight(weight, bits, exhaustive=True),
        )
    ]
    assert bool((errors[1] <= errors[0]).all() and errors[1].sum() < 0.97 * errors[0].sum())
    assert bool((errors[2] <= errors[1] * 1.0001).all())


def test_the_exhaustive_search_is_the_minimum_of_its_grid():
    weight = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    found = searched_weight(weight, 4, exhaustive=True)
    for row, w in enumerate(weight):
        span = (w.max().clamp(min=0) - w.min().clamp(max=0)) / 15
        best = min(
            float((s * ((w / s).round().add(z).clamp(0, 15) - z) - w).abs().pow(2.4).mean())
            for i in range(1, 101)
            for s in [span * i / 100]
            for z in range(16)
        )
        error = float((found.dequantize()[row] - w).abs().pow(2.4).mean())
        assert error == pytest.approx(best, rel=1e-4)


def test_reconstruction_is_the_difference_of_the_variants(both):
    with_steps, without = both["ptq4sam"], both["ptq4sam-s"]
    assert without.quant_record.steps == 0 and with_steps.quant_record.steps == 6 * 100
    assert method_info("ptq4sam").gradients and not method_info("ptq4sam-s").gradients
    x = images(32, seed=7)
    assert sqnr(small_net(), with_steps, x) > sqnr(small_net(), without, x) + 0.5
    notes = with_steps.quant_record.notes["reconstruction"]
    assert notes["rounding_rate"] == 0.2 and notes["blocks"] == 6 and notes["undecided"] < 0.05


def test_nothing_drops_afterwards(both):
    model = both["ptq4sam"]
    assert not any(isinstance(m, DroppingInput) for m in model.modules())
    assert all(type(s.input_scheme) is StaticUniform for s in quant_operators(model).values())
    x = images(3, seed=3)
    assert torch.equal(model(x), model(x))
    seen = []
    fc1 = model.mlp.fc1
    with listening({"fc1": fc1}, lambda name, tokens, x_hat, statistics: seen.append(x_hat)):
        model(x)
    (x_hat,) = seen
    step = fc1.input_scheme.step
    assert len((x_hat / step).round().unique()) <= 16  # every value lies on the grid
    torch.testing.assert_close((x_hat / step).round() * step, x_hat)


@pytest.mark.parametrize("method", ["ptq4sam", "ptq4sam-s"])
def test_save_and_load(both, method, tmp_path):
    codtdq.save(both[method], tmp_path)
    assert torch.equal(codtdq.load(tmp_path, model=small_net())(images()), both[method](images()))


def test_images_do_not_see_each_other(both):
    x = images(4, seed=2)
    torch.testing.assert_close(both["ptq4sam"](x)[:1], both["ptq4sam"](x[:1]), atol=1e-5, rtol=1e-4)


def test_quantizers_off_is_the_float_model():
    off = apply_method(small_net(), "ptq4sam", CALIBRATION, changes=FLOAT)
    assert torch.equal(off(images()), small_net()(images()))


@pytest.mark.parametrize("method", ["ptq4sam", "ptq4sam-s"])
def test_eight_bits_are_close(method):
    wide = apply_method(small_net(), method, CALIBRATION, changes=WIDE)
    assert sqnr(small_net(), wide, images(8, seed=4)) > 25


def test_one_side_only():
    weight_only = apply_method(small_net(), "ptq4sam-s", CALIBRATION, changes={"act_bits": None})
    assert {s.input_scheme.kind for s in quant_operators(weight_only).values()} == {"float"}
    act_only = apply_method(small_net(), "ptq4sam-s", CALIBRATION, changes={"weight_bits": None})
    assert {s.weight_scheme.kind for s in quant_operators(act_only).values()} == {"float"}


def test_bimodal_inputs_are_found_and_flipped():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([4.0, -4, 4, -4, 4, -4])
    rows = torch.randn(500, 6, generator=generator) + centres
    signs = flips_of(rows)
    assert signs is not None and signs.tolist() == centres.sign().tolist()
    assert flips_of(torch.randn(500, 6, generator=generator)) is None
    assert flips_of(torch.zeros(10, 3)) is None
    for conv in (nn.Conv2d(6, 4, 3), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 3, groups=2)):
        x = torch.randn(1, 6, 5, 5)
        flipped = conv._conv_forward(
            x * signs.view(1, -1, 1, 1), flip_columns(conv, conv.weight, signs), conv.bias
        )
        torch.testing.assert_close(flipped, conv(x))


def test_flips_leave_the_network_alone():
    model = small_net()
    with torch.no_grad():  # a norm whose channels lie far to either side
        model.norm2.bias.copy_(torch.where(torch.arange(48) % 2 > 0, 5.0, -5.0))
    changes = {"flip_bimodal": True, "weight_bits": None, "act_bits": 8, "reconstruct": False}
    flipped = apply_method(model, "ptq4sam", CALIBRATION, changes=changes)
    assert "mlp.fc1" in flipped.quant_record.notes["flipped"]
    assert isinstance(flipped.mlp.fc1.input_scheme, Rescaled)
    assert sqnr(model, flipped, images(8, seed=4)) > 25


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
@pytest.mark.parametrize("method", ["ptq4sam", "ptq4sam-s", "ahcptq"])
def test_eight_bits_keep_the_scores(name, method):
    from codtdq.data import open_dataset
    from codtdq.evaluation import CalibrationImages, evaluate

    model = codtdq.create_model(name)
    calibration = CalibrationImages(model, open_dataset("camosynth/calib", limit=16), count=16)
    wide = apply_method(model, method, calibration, changes=WIDE)
    test = open_dataset("camosynth/test-easy", limit=16)
    scores = [evaluate(m, test).metrics["S"] for m in (model, wide)]
    assert scores[1] == pytest.approx(scores[0], abs=0.01)
