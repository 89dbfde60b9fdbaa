"""The product kernels in Triton's interpreter, against float64 on the same codes."""

import gpu_cases
import pytest
import torch
from gpu_cases import PRODUCT_TOLERANCE, awkward

from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import encoders, products, reference
from codtdq.engine.triton.weights import GpuWeights, group_obstacle, weight_group_obstacle
from codtdq.numerics.affine import step_of
from codtdq.numerics.spec import ActivationSpec

pytestmark = gpu_cases.interpreted


def weights(outputs, taps, inputs, per=None, seed=1):
    """(codes, scales, the float64 weight) of random 4-bit weights."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-8, 8, (outputs, taps, inputs), generator=generator).to(torch.int8)
    count = 1 if per is None else taps * -(-inputs // per)
    scale = torch.rand(outputs, count, generator=generator) + 0.1
    if per is None:
        return codes, scale, codes.double() * scale.double().unsqueeze(-1)
    spread = scale.double().unflatten(1, (taps, -1)).repeat_interleave(per, -1)[..., :inputs]
    return codes, scale, codes.double() * spread


def check(found, expected, tolerance=PRODUCT_TOLERANCE):
    assert torch.equal(found.isnan(), expected.isnan())
    live = expected.isfinite()
    error = (found.double() - expected).abs()[live].max() / expected[live].abs().max()
    assert error <= tolerance, float(error)


def quantized(x, mode, group=32):
    if mode == "groups":
        return encoders.encode_groups(x, ActivationSpec(group_size=group))
    if mode == "zero-points":
        return encoders.encode_groups(x, ActivationSpec(group_size=group), zero_point=True)
    radius = x.abs().max().reshape(1)
    codes = encoders.encode_fixed(x, 4, radius, step_of(radius, 4))
    if mode == "shared zero-point":
        return codes._replace(zero=torch.tensor([3], dtype=torch.int32))
    return codes


MODES = ("groups", "zero-points", "shared", "shared zero-point")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(33, 70, 21), (1, 32, 1), (40, 3, 65)])
def test_linear(mode, rows, inputs, outputs):
    x = awkward(rows, inputs, seed=2) + (0.5 if "zero" in mode else 0.0)
    found = quantized(x, mode)
    codes, scale, weight = weights(outputs, 1, inputs)
    bias = torch.randn(outputs)
    window = Window((1, 1, rows))
    values = reference.values_of(found.codes, found.step, 32, inputs, found.zero)
    expected = reference.product(values, weight, window, bias, "none")
    packed = GpuWeights.pack(codes, scale, 32)
    check(products.product(found, packed, window, bias, "none"), expected)  # blocks as shipped


@pytest.mark.parametrize("group", [8, 20, 64, 96])
def test_other_groups(group, shape_sized_blocks):
    x, window = awkward(6, 130), Window((1, 1, 6))
    found = quantized(x, "groups", group)
    codes, scale, weight = weights(18, 1, 130)
    values = reference.values_of(found.codes, found.step, group, 130)
    packed = GpuWeights.pack(codes, scale, group)
    check(
        products.product(found, packed, window, None, "none"),
        reference.product(values, weight, window, None, "none"),
    )


@pytest.mark.parametrize("mode", ["groups", "zero-points", "shared"])
@pytest.mark.parametrize("per", [32, 64])
def test_weight_groups(mode, per, shape_sized_blocks):
    x, window = awkward(6, 100), Window((1, 2, 3), (3, 1), (1, 1), (1, 0))
    found = quantized(x, mode)
    codes, scale, weight = weights(10, 3, 100, per)
    values = reference.values_of(found.codes, found.step, 32, 100, found.zero)
    packed = GpuWeights.pack(codes, scale, 32, per)
    check(
        products.product(found, packed, window, None, "none"),
        reference.product(values, weight, window, None, "none"),
    )


WINDOWS = {
    "3x3": Window((2, 5, 6), (3, 3), (1, 1), (1, 1)),
    "dilated": Window((1, 7, 7), (3, 3), (1, 1), (4, 4), (4, 4)),
    "strided, no padding": Window((1, 8, 8), (4, 4), (4, 4)),
    "7x7 stride 4": Window((1, 9, 11), (7, 7), (4, 4), (3, 3)),
    "1x5, uneven strides": Window((1, 4, 9), (1, 5), (2, 3), (0, 2)),
    "1x1 stride 2": Window((1, 5, 5), (1, 1), (2, 2)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_convolution(mode, window, shape_sized_blocks):
    batch, height, width = window.maps
    x = awkward(batch * height * width, 34, seed=3)
    found = quantized(x, mode)
    codes, scale, weight = weights(17, window.kernel[0] * window.kernel[1], 34)
    bias = torch.randn(17)
    values = reference.values_of(found.codes, found.step, 32, 34, found.zero)
    packed = GpuWeights.pack(codes, scale, 32)
    check(
        products.product(found, packed, window, bias, "relu"),
        reference.product(values, weight, window, bias, "relu"),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["3x3", "dilated", "1x5, uneven strides"])
def test_depthwise(mode, name, shape_sized_blocks):
    window = WINDOWS[name]
    batch, height, width = window.maps
    x = awkward(batch * height * width, 40, seed=4)
    found = quantized(x, mode)
    taps = torch.randn(window.kernel[0] * window.kernel[1], 40)
    bias = torch.randn(40)
    values = reference.values_of(found.codes, found.step, 32, 40, found.zero)
    check(
        products.depthwise(found, taps, window, bias, "gelu"),
        reference.product(values, taps.t().unsqueeze(-1), window, bias, "gelu"),
    )


@pytest.mark.parametrize(
    ("spec", "outputs"),
    [
        (ActivationSpec(), 100),
        (ActivationSpec(projection="guarded"), 40),
        (ActivationSpec(literal=True), 40),
    ],
)
def test_fused_linear_is_quantizer_and_product(spec, outputs):
    x = awkward(37, 75, seed=5)
    x[7, 3] = float("nan")
    codes, scale, _ = weights(outputs, 1, 75)
    packed, bias = GpuWeights.pack(codes, scale, 32), torch.randn(outputs)
    apart = products.product(
        encoders.encode_groups(x, spec), packed, Window((1, 1, 37)), bias, "gelu"
    )
    fused = products.fused_linear(x, spec, packed, bias, "gelu")
    torch.testing.assert_close(fused, apart, rtol=0, atol=0, equal_nan=True)


def test_epilogues_keep_nan(shape_sized_blocks):
    x = torch.randn(4, 32)
    x[2, 5] = float("nan")
    found = quantized(x, "groups")
    codes, scale, weight = weights(8, 1, 32)
    values = reference.values_of(found.codes, found.step, 32, 32)
    for activation in ("none", "gelu", "relu"):
        y = products.product(
            found, GpuWeights.pack(codes, scale, 32), Window((1, 1, 4)), None, activation
        )
        assert torch.equal(y.isnan().any(1), torch.tensor([False, False, True, False]))
        check(y, reference.product(values, weight, Window((1, 1, 4)), None, activation))


def test_what_has_no_kernel_is_named():
    assert group_obstacle(32) is None and group_obstacle(8) is None and group_obstacle(128) is None
    assert "activation groups of 48" in group_obstacle(48)
    assert weight_group_obstacle(100, 32, 64) is None
    assert weight_group_obstacle(100, 32, 100) is None
    assert "weight groups of 48" in weight_group_obstacle(100, 32, 48)
