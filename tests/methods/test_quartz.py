"""QuaRTZ: the worked blocks, widths, and the whole method on a small network."""

import pytest
import torch

import codtdq
from codtdq.methods import apply_method
from codtdq.methods.rivals.quartz import ZeroSuppressed, flags_of, suppress_zeros
from codtdq.operators import quant_operators
from small_nets import images, small_net

BLOCKS = torch.tensor([[3, -2, 5, 0], [100, 3, -2, 10], [127, 64, -33, 8]]).float()


@torch.no_grad()
def sqnr(x, y):
    return float(10 * torch.log10(x.square().sum() / (x - y).square().sum()))


def test_worked_blocks():
    assert flags_of(BLOCKS, 4).flatten().tolist() == [0, 4, 4]
    expected = [[3, -2, 5, 0], [96, 0, 0, 0], [112, 64, -32, 0]]
    assert suppress_zeros(BLOCKS, 4).tolist() == expected


def test_rounding_goes_to_the_nearest_code_and_saturates():
    expected = [[3, -2, 5, 0], [96, 0, 0, 16], [112, 64, -32, 0]]  # 10/16 up; 127/16 = 7.9 -> 7
    assert suppress_zeros(BLOCKS, 4, rounded=True).tolist() == expected


@pytest.mark.parametrize("bits", range(2, 9))
def test_against_integer_shifts(bits):
    blocks = torch.randint(-127, 128, (200, 16), generator=torch.Generator().manual_seed(bits))
    got = suppress_zeros(blocks.float(), bits)
    for row, result in zip(blocks.tolist(), got.tolist()):
        flag = max(max(abs(i) for i in row).bit_length() - (bits - 1), 0)
        assert result == [((abs(i) >> flag) << flag) * (-1 if i < 0 else 1) for i in row]


def test_quantizer_works_in_blocks_of_channels_per_token():
    step = torch.tensor(0.5)
    row = torch.cat([torch.tensor([100.0, 3, -2, 10]), torch.zeros(12), torch.tensor([3.0, -2, 5])])
    tokens = torch.stack([row, torch.ones_like(row)])[None] * step
    got = ZeroSuppressed(4, step=step)(tokens) / step
    assert got[0, 0].tolist() == [96] + [0] * 15 + [3, -2, 5]
    assert got[0, 1].tolist() == [1] * 19  # another token, its own FLAG


def test_stage_one_clips_and_eight_bits_are_stage_one_alone():
    tokens = torch.tensor([[[300.0, 5.4, -128.0]]])
    assert ZeroSuppressed(8)(tokens).tolist() == [[[127, 5, -127]]]


def test_bits_count_the_flags():
    assert ZeroSuppressed(4).bits(64) == 4 + 3 / 16
    assert ZeroSuppressed(8).bits(64) == 8
    assert ZeroSuppressed(7).bits(24) == 7 + 2 / 24  # a short block has its FLAG too


@pytest.mark.parametrize("name", ["quartz", "quartz-rounded"])
def test_method_round_trip_and_batch_invariance(name, tmp_path):
    model = apply_method(small_net(), name, [images(4, seed=1)])
    x = images(3)
    y = model(x)
    assert torch.allclose(model(x[1:2]), y[1:2], atol=1e-5)
    again = codtdq.load(codtdq.save(model, tmp_path / "m"), model=small_net())
    assert torch.equal(again(x), y)


def test_rounding_beats_truncation_and_eight_bits_are_near_float():
    net, x, calibration = small_net(), images(8), [images(8, seed=1)]
    y = net(x)
    noise = {
        name: sqnr(y, apply_method(net, name, calibration, changes={"weight_bits": None})(x))
        for name in ("quartz", "quartz-rounded")
    }
    assert noise["quartz-rounded"] > noise["quartz"] > 0
    eight = apply_method(net, "quartz", calibration, changes={"weight_bits": 8, "act_bits": 8})
    assert sqnr(y, eight(x)) > 20


def test_quantizers_off_is_the_float_network():
    net, x = small_net(), images()
    off = apply_method(net, "quartz", [x], changes={"weight_bits": None, "act_bits": None})
    assert torch.allclose(off(x), net(x), atol=1e-5)


def test_step_is_the_calibrated_absmax():
    net = small_net()
    model = apply_method(net, "quartz", [images(4, seed=1)])
    stem = quant_operators(model)["stem"].input_scheme
    assert float(stem.step) == pytest.approx(float(images(4, seed=1).abs().max()) / 127)
