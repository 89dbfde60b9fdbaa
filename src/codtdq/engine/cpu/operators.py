"""The engine's functions as torch operators, with shapes for tensors that have no values.

`torch.ops.codtdq.*` is what a compiled or exported model calls; eager code calls the functions of
`products` directly and saves the dispatch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu import deform, library, products
from codtdq.engine.cpu.interface import QuantSpec
from codtdq.engine.cpu.products import Codes, Window
from codtdq.engine.cpu.weights import PackedWeights

_WINDOW = "int[] maps, int[] kernel, int[] stride, int[] padding, int[] dilation"
_SCHEMAS = {
    "encode_groups": "(Tensor x, int stored, int bits, int group, bool literal, bool guarded, "
    "float? percentile, float? tau, float? zero_ratio) -> (Tensor, Tensor, Tensor)",
    "encode_fixed": "(Tensor x, int stored, int bits, Tensor radius, Tensor step) "
    "-> (Tensor, Tensor)",
    "largest_magnitude": "(Tensor x, bool per_channel) -> Tensor",
    "product": "(Tensor codes, Tensor step, Tensor sums, int bits, Tensor packed, Tensor scales, "
    f"int[] shape, int group, int weight_group, {_WINDOW}, Tensor? bias, str activation) -> Tensor",
    "depthwise": "(Tensor codes, Tensor step, Tensor sums, int bits, int group, Tensor taps, "
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


def encode_groups(x: Tensor, stored: int, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, steps, sums) of x; settings as in `quant_spec`."""
    found = products.encode_groups(x, quant_spec(*settings), stored)
    return found.codes, found.step, found.sums


def encode_fixed(
    x: Tensor, stored: int, bits: int, radius: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """(codes, sums) of x under given ranges."""
    found = products.encode_fixed(x, bits, radius, step, stored)
    return found.codes, found.sums


def largest_magnitude(x: Tensor, per_channel: bool) -> Tensor:
    """Largest |x|, [1] or [C]."""
    return products.largest_magnitude(x, per_channel=per_channel).clone()


def product(
    codes: Tensor,
    step: Tensor,
    sums: Tensor,
    bits: int,
    packed: Tensor,
    scales: Tensor,
    shape: list[int],
    group: int,
    weight_group: int,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: Tensor | None,
    activation: str,
) -> Tensor:
    """Output rows of a dense product."""
    used = library.instruction_set() or ""
    weights = PackedWeights(packed, scales, _three(shape), group, weight_group, used)
    window = _window(maps, kernel, stride, padding, dilation)
    return products.product(Codes(codes, step, sums, bits), weights, window, bias, activation)


def depthwise(
    codes: Tensor,
    step: Tensor,
    sums: Tensor,
    bits: int,
    group: int,
    taps: Tensor,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: Tensor | None,
    activation: str,
) -> Tensor:
    """Output rows of a depthwise convolution."""
    window = _window(maps, kernel, stride, padding, dilation)
    return products.depthwise(Codes(codes, step, sums, bits), group, taps, window, bias, activation)


def _codes_shape(x: Tensor, stored: int) -> tuple[Tensor, Tensor]:
    rows, count = x.numel() // x.shape[1], -(-x.shape[1] // stored)
    return (
        x.new_empty(rows, count * stored, dtype=torch.int8),
        x.new_empty(rows, count, dtype=torch.int32),
    )


def _encode_groups_shape(x: Tensor, stored: int, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    codes, sums = _codes_shape(x, stored)
    return codes, torch.empty_like(sums, dtype=torch.float32), sums


def _encode_fixed_shape(x: Tensor, stored: int, *settings: Any) -> tuple[Tensor, Tensor]:
    return _codes_shape(x, stored)


def _magnitude_shape(x: Tensor, per_channel: bool) -> Tensor:
    return x.new_empty(x.shape[1] if per_channel else 1)


def _product_shape(
    codes: Tensor,
    step: Tensor,
    sums: Tensor,
    bits: int,
    packed: Tensor,
    scales: Tensor,
    shape: list[int],
    group: int,
    weight_group: int,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    *rest: Any,
) -> Tensor:
    rows = _window(maps, kernel, stride, padding, dilation).rows
    return scales.new_empty(rows, shape[0])


def _depthwise_shape(
    codes: Tensor,
    step: Tensor,
    sums: Tensor,
    bits: int,
    group: int,
    taps: Tensor,
    maps: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: Tensor | None,
    activation: str,
) -> Tensor:
    rows = _window(maps, kernel, stride, padding, dilation).rows
    return taps.new_empty(rows, products.depthwise_outputs(taps.shape[1], activation))


def _deform_shape(x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.new_empty(x.shape[0], *x.shape[2:], weight.shape[1])
    return rows.permute(0, 3, 1, 2)


def _window(maps: Any, *sides: Any) -> Window:
    return Window(_three(maps), *((side[0], side[1]) for side in sides))


def _three(values: Any) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


for _name, _on_cpu, _on_meta in (
    ("encode_groups", encode_groups, _encode_groups_shape),
    ("encode_fixed", encode_fixed, _encode_fixed_shape),
    ("largest_magnitude", largest_magnitude, _magnitude_shape),
    ("product", product, _product_shape),
    ("depthwise", depthwise, _depthwise_shape),
    ("deform_conv", deform.deform_conv, _deform_shape),
):
    _operators.impl(_name, _on_cpu, "CPU")
    _operators.impl(_name, _on_meta, "Meta")
