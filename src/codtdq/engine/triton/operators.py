"""The kernels under the names that `codtdq.engine.cpu.operators` gives to torch, for CUDA tensors.

`torch.ops.codtdq.*` is what a compiled or exported model calls; names, arguments and shapes are the
engine's, weights are packed as `codtdq.engine.triton.weights` packs them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu import operators as _schemas  # noqa: F401  the names must be defined first
from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import encoders, products
from codtdq.engine.triton.encoders import Codes
from codtdq.engine.triton.weights import SLAB, GpuWeights
from codtdq.numerics.spec import ActivationSpec


def encode_groups(
    x: Tensor,
    stored: int,
    bits: int,
    group: int,
    literal: bool,
    guarded: bool,
    percentile: float | None,
    tau: float | None,
    zero_ratio: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, steps, sums) of x; groups are stored whole: `stored` is `group`."""
    spec = ActivationSpec(
        bits=bits,
        group_size=group,
        literal=literal,
        percentile=percentile,
        tau=tau,
        zero_ratio=zero_ratio,
        projection="guarded" if guarded else "min",
    )
    x = x if x.ndim == 2 else x.flatten(2)
    shape = (x.numel() // x.shape[1], -(-x.shape[1] // group))
    sums = x.new_empty(shape, dtype=torch.int32)
    found = encoders.encode_groups(x, spec, sums=sums)
    return found.codes, found.step, sums


def encode_fixed(
    x: Tensor, stored: int, bits: int, radius: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """(codes, sums) of x under given ranges; `stored` is 32."""
    codes = encoders.encode_fixed(x if x.ndim == 2 else x.flatten(2), bits, radius, step).codes
    return codes, codes.unflatten(1, (-1, SLAB)).sum(-1, dtype=torch.int32)


def largest_magnitude(x: Tensor, per_channel: bool) -> Tensor:
    """Largest |x|, [1] or [C]; NaN if x is not finite."""
    others = [axis for axis in range(x.ndim) if axis != 1] if per_channel else None
    largest = torch.linalg.vector_norm(x, float("inf"), dim=others).reshape(-1)
    return torch.where(largest.isfinite(), largest, float("nan"))


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
    """Output rows of a dense product; there are no zero-points under this name."""
    outputs, taps, inputs = shape
    weights = GpuWeights(packed, scales, None, (outputs, taps, inputs), group)
    window = _window(maps, kernel, stride, padding, dilation)
    return products.product(Codes(codes, step, group, bits), weights, window, bias, activation)


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
    return products.depthwise(Codes(codes, step, group, bits), taps, window, bias, activation)


def _window(maps: Any, *sides: Any) -> Window:
    return Window((maps[0], maps[1], maps[2]), *((side[0], side[1]) for side in sides))


_kernels = torch.library.Library("codtdq", "IMPL", "CUDA")
for _function in (encode_groups, encode_fixed, largest_magnitude, product, depthwise):
    _kernels.impl(_function.__name__, _function)
