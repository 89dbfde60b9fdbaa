"""The engine's functions as torch operators, with shapes for tensors that have no values.

`torch.ops.codtdq.*` is what a compiled or exported model calls, and their arguments are checked
(`arguments`); eager code calls the functions of `carry` and `carriers` directly.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu import arguments, carriers, carry, deform, library, products
from codtdq.engine.cpu.arguments import Arguments
from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.interface import QuantSpec
from codtdq.engine.cpu.products import Window
from codtdq.numerics.carry import CarrySpec
from codtdq.schemes.lowered import RowTransform

_WINDOW = "int[] maps, int[] kernel, int[] stride, int[] padding, int[] dilation"
_SEARCHED = "int bits, int group, int trials, bool asymmetric, float zero_weight"
_SCHEMAS = {
    "carry_groups": "(Tensor x, int bits, int group, bool literal, bool guarded, "
    "float? percentile, float? tau, float? zero_ratio, bool per_image) -> (Tensor, Tensor)",
    "carry_tokens": f"(Tensor x, {_SEARCHED}, Tensor? shift, Tensor? scale, Tensor? order, "
    "bool hadamard, bool per_image) -> (Tensor, Tensor)",
    "carry_pixels": f"(Tensor x, {_SEARCHED}, bool per_channel) -> (Tensor, Tensor)",
    "carry_fixed": "(Tensor x, int bits, Tensor step, Tensor? zero, bool per_image, "
    "bool per_channel) -> (Tensor, Tensor)",
    "largest_magnitude": "(Tensor x, bool per_channel) -> Tensor",
    "carrier_product": "(Tensor data, Tensor unit, int unit_rows, Tensor packed, "
    "Tensor multiplier, Tensor factor, int[] shape, int bits, int group, "
    f"{_WINDOW}, Tensor? bias, str activation) -> Tensor",
    "carrier_depthwise": "(Tensor data, Tensor unit, int unit_rows, Tensor taps, Tensor factor, "
    f"{_WINDOW}, Tensor? bias, str activation) -> Tensor",
    "deform_conv": "(Tensor x, Tensor offsets, Tensor weight, Tensor bias) -> Tensor",
}
_operators = torch.library.Library("codtdq", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _operators.define(_name + _schema)


def quant_spec(
    bits: int,
    group: int,
    literal: bool,
    guarded: bool,
    percentile: float | None,
    tau: float | None,
    zero_ratio: float | None,
) -> QuantSpec:
    """The engine's form of how token groups get their range."""
    return QuantSpec(
        bits,
        group,
        literal,
        guarded,
        percentile is not None,
        tau is not None,
        zero_ratio is not None,
        0,
        percentile or 0.0,
        tau or 0.0,
        zero_ratio or 0.0,
    )


def carry_groups(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    """(data, units) of token groups; settings as in `quant_spec`, then per_image."""
    bits, group, _, _, *bounds, per_image = settings
    Arguments("carry_groups").input(x)
    arguments.check_bounds("carry_groups", bits, group, *bounds)
    found = carry.carry_groups(x, quant_spec(*settings[:-1]), per_image=per_image)
    return found.data, found.unit


def carry_tokens(
    x: Tensor,
    bits: int,
    group: int,
    trials: int,
    asymmetric: bool,
    zero_weight: float,
    shift: Tensor | None,
    scale: Tensor | None,
    order: Tensor | None,
    hadamard: bool,
    per_image: bool,
) -> tuple[Tensor, Tensor]:
    """(data, units) of token groups whose multipliers are tried, behind a transform."""
    given = arguments.check_search("carry_tokens", bits, group, trials, asymmetric, zero_weight)
    arguments.check_transform(given, given.input(x), shift, scale, order)
    how = CarrySpec(bits, "group", "token", group, asymmetric, trials, zero_weight)
    spec = carry.carry_spec(how, RowTransform(shift, scale, order, hadamard))
    found = carry.carry_groups(x, spec, per_image=per_image)
    return found.data, found.unit


def carry_pixels(
    x: Tensor,
    bits: int,
    group: int,
    trials: int,
    asymmetric: bool,
    zero_weight: float,
    per_channel: bool,
) -> tuple[Tensor, Tensor]:
    """(data, units) of pixel groups."""
    arguments.check_search("carry_pixels", bits, group, trials, asymmetric, zero_weight).input(x)
    how = CarrySpec(bits, "pixel", "image", group, asymmetric, trials, zero_weight)
    found = carry.carry_pixels(x, carry.carry_spec(how), per_channel=per_channel)
    return found.data, found.unit


def carry_fixed(
    x: Tensor, bits: int, step: Tensor, zero: Tensor | None, per_image: bool, per_channel: bool
) -> tuple[Tensor, Tensor]:
    """(data, units) under given steps."""
    arguments.check_steps(x, bits, step, zero, per_channel)
    found = carry.carry_fixed(x, bits, step, zero, per_image=per_image, per_channel=per_channel)
    return found.data, found.unit


def largest_magnitude(x: Tensor, per_channel: bool) -> Tensor:
    """Largest |x|, [1] or [C]."""
    given = Arguments("largest_magnitude")
    given.input(x)
    given.require(x.numel() > 0, "x has no values", "one or more")
    return products.largest_magnitude(x, per_channel=per_channel).clone()


def carrier_product(
    data: Tensor,
    unit: Tensor,
    unit_rows: int,
    packed: Tensor,
    multiplier: Tensor,
    factor: Tensor,
    shape: list[int],
    bits: int,
    group: int,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: Tensor | None,
    activation: str,
) -> Tensor:
    """Output rows of a dense product."""
    given = Arguments("carrier_product")
    given.require(len(shape) == 3, f"shape is {list(shape)}", "outputs, taps, inputs")
    for value in shape:
        given.whole("shape", value, 1, arguments.LARGEST_SIDE)
    arguments.check_window(given, maps, kernel, stride, padding, dilation)
    padded = math.prod(kernel) > 1 or any(padding)
    arguments.check_carriers(
        given, data, unit, unit_rows, maps, shape[2], own_units=False, image_units=padded
    )
    found = f"shape is {list(shape)} for a kernel {list(kernel)}"
    given.require(shape[1] == math.prod(kernel), found, "as many taps as the kernel has")
    given.tensor("packed", packed, torch.uint8, [None], dense=True)
    given.tensor("multiplier", multiplier, torch.int8, [None], dense=True)
    given.tensor("factor", factor, torch.float32, [None], dense=True)
    given.whole("group", group, 0, arguments.LARGEST_SIDE)
    arguments.check_output(given, bias, shape[0], activation, gated=False)
    used = library.instruction_set() or ""
    weights = carriers.CarrierWeights(packed, multiplier, factor, _three(shape), bits, group, used)
    window = _window(maps, kernel, stride, padding, dilation)
    x = Carriers(data, unit, unit_rows)
    return carriers.carrier_product(x, weights, window, bias, activation)


def carrier_depthwise(
    data: Tensor,
    unit: Tensor,
    unit_rows: int,
    taps: Tensor,
    factor: Tensor,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: Tensor | None,
    activation: str,
) -> Tensor:
    """Output rows of a depthwise convolution."""
    given = Arguments("carrier_depthwise")
    arguments.check_window(given, maps, kernel, stride, padding, dilation)
    given.tensor("taps", taps, torch.int8, [math.prod(kernel), None], dense=True)
    channels = taps.shape[1]
    given.require(channels > 0, "taps of no channels", "one or more")
    arguments.check_carriers(
        given, data, unit, unit_rows, maps, channels, own_units=True, image_units=True
    )
    given.tensor("factor", factor, torch.float32, [channels], dense=True)
    arguments.check_output(given, bias, channels, activation, gated=channels % 2 == 0)
    window = _window(maps, kernel, stride, padding, dilation)
    x = Carriers(data, unit, unit_rows)
    return carriers.carrier_depthwise(x, taps, factor, window, bias, activation)


def deform_conv(x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Output map of a deformable convolution."""
    arguments.check_deform(x, offsets, weight, bias)
    return deform.deform_conv(x, offsets, weight, bias)


def _carried_shape(
    x: Tensor, per_image: bool, per_channel: bool = False, width: int = 1
) -> tuple[Tensor, Tensor]:
    channels = x.shape[1]
    rows = x.numel() // channels
    units = rows
    if per_image:
        units = 1 if x.ndim == 2 else x.shape[0]
    depth = channels * width
    depth = -(-depth // 8) * 8 if depth <= 16 else -(-depth // 32) * 32
    unit = x.new_empty(units, channels) if per_channel else x.new_empty(units)
    return x.new_empty(rows, depth, dtype=torch.int8), unit


def _groups_shape(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return _carried_shape(x, settings[-1])


def _pixels_shape(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return _carried_shape(x, True, settings[-1])


def _fixed_shape(
    x: Tensor, bits: int, step: Tensor, zero: Tensor | None, per_image: bool, per_channel: bool
) -> tuple[Tensor, Tensor]:
    doubled = zero is not None and bits == 8
    return _carried_shape(x, per_image, per_channel, 2 if doubled else 1)


def _magnitude_shape(x: Tensor, per_channel: bool) -> Tensor:
    return x.new_empty(x.shape[1] if per_channel else 1)


def _product_shape(
    data: Tensor,
    unit: Tensor,
    unit_rows: int,
    packed: Tensor,
    multiplier: Tensor,
    factor: Tensor,
    shape: list[int],
    bits: int,
    group: int,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    *rest: Any,
) -> Tensor:
    rows = _window(maps, kernel, stride, padding, dilation).rows
    return factor.new_empty(rows, shape[0])


def _depthwise_shape(
    data: Tensor,
    unit: Tensor,
    unit_rows: int,
    taps: Tensor,
    factor: Tensor,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: Tensor | None,
    activation: str,
) -> Tensor:
    rows = _window(maps, kernel, stride, padding, dilation).rows
    return factor.new_empty(rows, products.depthwise_outputs(taps.shape[1], activation))


def _deform_shape(x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.new_empty(x.shape[0], *x.shape[2:], weight.shape[1])
    return rows.permute(0, 3, 1, 2)


def _window(maps: Any, *sides: Any) -> Window:
    return Window(_three(maps), *((side[0], side[1]) for side in sides))


def _three(values: Any) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


for _name, _on_cpu, _on_meta in (
    ("carry_groups", carry_groups, _groups_shape),
    ("carry_tokens", carry_tokens, _groups_shape),
    ("carry_pixels", carry_pixels, _pixels_shape),
    ("carry_fixed", carry_fixed, _fixed_shape),
    ("largest_magnitude", largest_magnitude, _magnitude_shape),
    ("carrier_product", carrier_product, _product_shape),
    ("carrier_depthwise", carrier_depthwise, _depthwise_shape),
    ("deform_conv", deform_conv, _deform_shape),
):
    _operators.impl(_name, _on_cpu, "CPU")
    _operators.impl(_name, _on_meta, "Meta")
