"""The product kernels in Triton's interpreter: the bits of the reference."""

import gpu_cases
import pytest
import torch

from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import products
from codtdq.engine.triton.weights import GpuWeights
from codtdq.numerics import carrier
from codtdq.schemes.lowered import LoweredWeight

pytestmark = gpu_cases.interpreted


def whole(low, high, *shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator)


def weights(outputs, taps, inputs, group=None, bits=4, seed=1):
    """A random weight, multipliers of both signs."""
    most = 127 if bits == 8 else 7
    codes = whole(-most, most, outputs, taps, inputs, seed=seed).to(torch.int8)
    factor = torch.rand(outputs, generator=torch.Generator().manual_seed(seed)) + 0.1
    if group is None:
        return LoweredWeight(codes, factor, bits=bits)
    p = whole(1, 15, outputs, taps, -(-inputs // group), seed=seed + 1)
    p = p * (2 * whole(0, 1, *p.shape, seed=seed + 2) - 1)
    return LoweredWeight(codes, factor, p.to(torch.int8), group)


def carriers(rows, channels, unit_rows, own=False, seed=2):
    """(for the kernels, for the reference)."""
    data = whole(-127, 127, rows, channels, seed=seed).to(torch.int8)
    data[::5], data[1::7] = 127, -127
    shape = (-(-rows // unit_rows), channels) if own else (-(-rows // unit_rows),)
    unit = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.01
    unit[0] = float("nan")
    padded = torch.nn.functional.pad(data, (0, -channels % 32)).contiguous()
    one = torch.ones(1, dtype=torch.uint8)
    return Carriers(padded, unit, unit_rows), carrier.Carried(data, unit, one, unit_rows)


def check(found, expected, activation="none"):
    if activation == "relu":
        expected = torch.where(expected < 0, 0.0, expected)
    assert torch.equal(found.isnan(), expected.isnan()) and expected.isnan().any()
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(("group", "bits"), [(None, 4), (32, 4), (64, 4), (16, 4), (None, 8)])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(33, 70, 21), (3, 32, 1), (40, 3, 65)])
def test_linear(group, bits, rows, inputs, outputs):
    x, plain = carriers(rows, inputs, 1)
    weight, bias = weights(outputs, 1, inputs, group, bits), torch.randn(outputs)
    packed = GpuWeights.pack(weight, weight.factor)
    expected = carrier.linear(plain, weight.whole(), weight.factor, bias)
    check(products.product(x, packed, Window((1, 1, rows)), bias, "none"), expected)


WINDOWS = {
    "3x3": Window((2, 5, 6), (3, 3), (1, 1), (1, 1)),
    "dilated": Window((2, 7, 7), (3, 3), (1, 1), (4, 4), (4, 4)),
    "strided, no padding": Window((2, 8, 8), (4, 4), (4, 4)),
    "7x7 stride 4": Window((2, 9, 11), (7, 7), (4, 4), (3, 3)),
    "1x5, uneven strides": Window((2, 4, 9), (1, 5), (2, 3), (0, 2)),
    "1x1 stride 2": Window((2, 5, 5), (1, 1), (2, 2)),
}


def convolved(plain, weight, window, bias, groups=1):
    height, width = window.padding
    return carrier.convolution(
        plain,
        window.maps,
        weight.whole(),
        window.kernel,
        weight.factor,
        bias,
        stride=window.stride,
        pads=(width, width, height, height),
        dilation=window.dilation,
        groups=groups,
    )[0]


@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("name", WINDOWS)
def test_convolution(group, name, shape_sized_blocks):
    window = WINDOWS[name]
    pixels = window.maps[1] * window.maps[2]
    taps = window.kernel[0] * window.kernel[1]
    weight, bias = weights(17, taps, 34, group), torch.randn(17)
    packed = GpuWeights.pack(weight, weight.factor)
    for unit_rows in (pixels, 1) if taps == 1 else (pixels,):
        x, plain = carriers(2 * pixels, 34, unit_rows)
        found = products.product(x, packed, window, bias, "relu")
        check(found, convolved(plain, weight, window, bias), "relu")


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["3x3", "dilated", "1x5, uneven strides"])
def test_depthwise(own, name, shape_sized_blocks):
    window = WINDOWS[name]
    pixels = window.maps[1] * window.maps[2]
    x, plain = carriers(2 * pixels, 40, pixels, own)
    weight = weights(40, window.kernel[0] * window.kernel[1], 1, bits=8)
    bias, taps = torch.randn(40), weight.codes.squeeze(2).t().contiguous()
    found = products.depthwise(x, taps, weight.factor, window, bias, "relu")
    check(found, convolved(plain, weight, window, bias, groups=40), "relu")


def test_epilogues_keep_nan(shape_sized_blocks):
    x, _ = carriers(4, 32, 1)
    packed = GpuWeights.pack(weight := weights(8, 1, 32), weight.factor)
    for activation in ("none", "gelu", "relu"):
        y = products.product(x, packed, Window((1, 1, 4)), None, activation)
        assert torch.equal(y.isnan().any(1), torch.tensor([True, False, False, False]))


def test_weights_stay_nibbles():
    weight = weights(64, 1, 256, 32)
    assert GpuWeights.pack(weight, weight.factor).bytes == 64 * 256 * 4.25 / 8 + 4 * 64
