"""The kernels in plain torch: what each of them has to give, on any device.

Ranges and rounding come from `codtdq.numerics`, which defines them; products are in float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.engine.cpu.products import Window
from codtdq.numerics.affine import (
    EPS,
    encode,
    encode_shifted,
    grid_of,
    qmax_of,
    qmin_of,
    step_of,
    to_codes,
)
from codtdq.numerics.grouping import split
from codtdq.numerics.projection import project
from codtdq.numerics.spec import ActivationSpec


def tokens_of(x: Tensor) -> Tensor:
    """Rows [N, C], or maps [B, C, positions] as rows [B positions, C]."""
    return x if x.ndim == 2 else x.transpose(1, 2).flatten(0, 1)


def quantize_groups(x: Tensor, spec: ActivationSpec) -> tuple[Tensor, Tensor]:
    """(codes int8 [tokens, K g], steps [tokens, K]) of `quantize.quantize_groups`."""
    groups = split(tokens_of(x), spec)
    found = project(groups, spec)
    encoded = encode(groups.values, found.radius.unsqueeze(-1), found.step.unsqueeze(-1), spec.bits)
    return to_codes(encoded).flatten(1), found.step


def quantize_min_max(x: Tensor, spec: ActivationSpec) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, steps, zero-points) between the extremes of each group, on signed codes.

    The grid is `affine.grid_of` with a zero-point; codes and zero-points 0 .. 2^bits - 1 are moved
    by -2^(bits-1), which changes no value and fits int8.
    """
    groups = split(tokens_of(x), spec).values  # padding is 0, which every range holds
    step, zero = grid_of(groups.amin(-1), groups.amax(-1), spec.bits, symmetric=False)
    zero = zero + qmin_of(spec.bits)
    codes = quantize_given(x, spec, step, zero)
    return codes, step, zero.to(torch.int32)


def quantize_given(x: Tensor, spec: ActivationSpec, step: Tensor, zero: Tensor) -> Tensor:
    """Codes int8 [tokens, K g] under given steps and zero-points [tokens, K]."""
    low, high = qmin_of(spec.bits), qmax_of(spec.bits)
    groups = split(tokens_of(x), spec).values
    shifted = encode_shifted(groups, step.unsqueeze(-1), zero.float().unsqueeze(-1), low, high)
    return to_codes(shifted).flatten(1)


def quantize_fixed(x: Tensor, bits: int, radius: Tensor, step: Tensor) -> Tensor:
    """Codes int8 [tokens, C] under given ranges, [1] or [C]."""
    return to_codes(encode(tokens_of(x), radius, step, bits))


def quantize_dynamic(x: Tensor, bits: int, *, per_channel: bool) -> tuple[Tensor, Tensor]:
    """(codes int8 [tokens, C], steps [1] or [C]) under the largest magnitude, NaN if not finite."""
    tokens = tokens_of(x)
    largest = tokens.abs().amax(0) if per_channel else tokens.abs().max().reshape(1)
    radius = torch.where(largest.isfinite(), largest.clamp(min=EPS), float("nan"))
    step = step_of(radius, bits)
    return to_codes(encode(tokens, radius, step, bits)), step


def values_of(
    codes: Tensor, step: Tensor, group: int, channels: int, zero: Tensor | None = None
) -> Tensor:
    """Float64 [tokens, C] that codes [tokens, K g] stand for."""
    cut = codes.unflatten(1, (-1, group)).double()
    if zero is not None:
        cut = cut - (zero.double().unsqueeze(-1) if zero.ndim > 1 else zero.double())
    if step.ndim > 1:
        return (cut * step.double().unsqueeze(-1)).flatten(1)[:, :channels]
    return cut.flatten(1)[:, :channels] * step.double()


def product(
    values: Tensor, weight: Tensor, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Output rows float64 [window.rows, O] of tokens [N, C] and a weight [O, T, I] in float64.

    I = 1 with O = C is a depthwise convolution.
    """
    batch, height, width = window.maps
    maps = values.unflatten(0, (batch, height, width)).permute(0, 3, 1, 2)
    kernel = weight.double().unflatten(1, window.kernel).permute(0, 3, 1, 2)
    groups = maps.shape[1] // kernel.shape[1]
    y = F.conv2d(
        maps,
        kernel,
        None if bias is None else bias.double(),
        window.stride,
        window.padding,
        window.dilation,
        groups,
    )
    y = {"none": lambda v: v, "gelu": F.gelu, "relu": F.relu}[activation](y)
    return y.permute(0, 2, 3, 1).flatten(0, 2)
