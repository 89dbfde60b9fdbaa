"""Carriers: signed bytes that stand for the codes of every scheme, so that one product serves all.

Inputs: x_hat[t, k] = u[t] a[t, k] with a = m (q - z) in -127..127. q is the code, z the zero-point,
m a whole multiplier 1..M of its group or channel, u a float32 of the row (or of an image), and
M = floor(127 / largest |q - z|): 15 for 4 symmetric bits, 8 for 4 bits with a zero-point. Of the
float32 steps s that a scheme chose:

    u = max(s) * (1 / M)      m = clamp(ceil(s * (1 / u)), 1, M)      q = rint(x * (1 / (u m))) + z

and floor instead of ceil where a bound of DCRP (Eq. dcrp) set the step, which then may not grow.

Weights: w = v[n] p[n, g] r[n, k] with r in -8..7 and a whole 1 <= |p| <= 15, or r in -127..127 and
p = 1. Both factors are bytes, the sum over all k is exact in 32 bits (up to 130,000 products), and

    y[t, n] = float(sum a p r) * (u[t] v[n]) + b[n].

Every float operation here is one float32 operation of the kernels, in their order: codes, units and
outputs agree bit by bit with every instruction set and any number of threads. Where a row holds a
NaN or an infinity, its unit is NaN and its bytes are zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.numerics.affine import code_limits, grid_of
from codtdq.numerics.grouping import group_count, merge, split
from codtdq.numerics.projection import Active, all_finite, project
from codtdq.numerics.spec import ActivationSpec

LARGEST = 127  # carriers are -127..127
LARGEST_MULTIPLIER = 15  # of weights: |p r| <= 120
LONGEST_SUM = 130_000  # products that a 32-bit sum holds
LEAST_STEP = 1e-30


class Carried(NamedTuple):
    """A quantized input."""

    values: Tensor  # int8 [rows, C]
    unit: Tensor  # float32 [ceil(rows / unit_rows)]
    multiplier: Tensor  # uint8 [rows, K], [C] or [1]; 0 where there is none
    unit_rows: int  # rows that share a unit


def most_multiplier(bits: int, asymmetric: bool = False) -> int:
    """M: multipliers up to it keep m (q - z) inside a signed byte."""
    if not 2 <= bits <= (7 if asymmetric else 8):
        raise ConfigError(
            f"carriers of {bits} bits {'with' if asymmetric else 'without'} a zero-point do not "
            f"fit a signed byte; accepted: 2 to {7 if asymmetric else 8}"
        )
    reach = 2**bits - 1 if asymmetric else 2 ** (bits - 1)
    return max(LARGEST // reach, 1)


def carry_groups(
    x: Tensor, spec: ActivationSpec, *, asymmetric: bool = False, unit_rows: int = 1
) -> Carried:
    """Carriers of rows x [N, C], token group by token group.

    Symmetric under the ranges of `spec` (DSTG, DCRP), or asymmetric from the least to the largest
    value of each group, zero included.
    """
    most = most_multiplier(spec.bits, asymmetric)
    groups = split(x, spec)  # [N, K, g]
    if asymmetric:
        least, high = groups.values.amin(-1), groups.values.amax(-1)
        step = grid_of(least, high, spec.bits, symmetric=False)[0]
        step = step.masked_fill(~(all_finite(groups) & step.isfinite()), torch.nan)
        bounded = torch.zeros_like(step, dtype=torch.bool)
        least = least.clamp(max=0.0)
    else:
        found = project(groups, spec)
        step, least = found.step, torch.zeros_like(found.step)
        bounded = (found.active == Active.C1) | (found.active == Active.C2)
    unit = _unit(_blocks(step, unit_rows), most)  # [units]
    each = unit.repeat_interleave(unit_rows)[: x.shape[0]].unsqueeze(1)  # [N, 1]
    multiplier = _multipliers(step, each, bounded, most)  # [N, K]
    inverse = _inverse(multiplier * each)
    low, high = _limits(spec.bits, asymmetric, torch.round(-least * inverse))
    values = _carried(groups.values, inverse, low, high, multiplier)
    lost = each.isnan()
    values = merge(values, x.shape, spec).masked_fill(lost, 0.0)
    return Carried(_bytes(values), unit, _whole(multiplier.masked_fill(lost, 0.0)), unit_rows)


def carry_fixed(
    x: Tensor, bits: int, step: Tensor, zero: Tensor | None = None, *, unit_rows: int = 1
) -> Carried:
    """Carriers of rows x [N, C] under given steps [1] or [C]: one range per tensor or per channel.

    zero: whole zero-points [1] or [C] in 0..2^bits - 1; None: symmetric codes. All units are the
    same, but for those of rows that are not finite.
    """
    most = 1 if step.numel() == 1 else most_multiplier(bits, zero is not None)
    most_multiplier(bits, zero is not None)  # raises where the codes do not fit
    if bool((step < LEAST_STEP).any()) or bool(step.isinf().any()):
        raise ConfigError(
            f"steps from {float(step.min()):g} to {float(step.max()):g}; "
            f"accepted: finite, {LEAST_STEP:g} or more"
        )
    rows = x.shape[0]
    unit = _unit(step.float().unsqueeze(0), most)  # [1]
    multiplier = _multipliers(step.float(), unit, torch.zeros(()) > 0, most)
    inverse = _inverse(multiplier * unit)
    shift = torch.zeros_like(step) if zero is None else zero.float()
    low, high = _limits(bits, zero is not None, shift)
    values = _carried(x.unsqueeze(-1), inverse, low, high, multiplier).squeeze(-1)
    lost = ~x.isfinite().all(1)  # [N]
    values = values.masked_fill(lost.unsqueeze(1) | unit.isnan(), 0.0)
    units = unit.repeat(-(-rows // unit_rows))
    units = units.masked_fill(_blocks(lost.unsqueeze(1), unit_rows).any(1), torch.nan)
    return Carried(_bytes(values), units, _whole(multiplier.nan_to_num(0.0)), unit_rows)


def whole_weight(codes: Tensor, multiplier: Tensor | None, group: int | None) -> Tensor:
    """Whole weights p r, int32 [O, T, I], of codes [O, T, I] and multipliers [O, T, K] or None."""
    whole = codes.int()
    if multiplier is None:
        return whole
    inputs = codes.shape[-1]
    size = group or inputs
    assert multiplier.shape[-1] == group_count(inputs, size)
    return whole * multiplier.int().repeat_interleave(size, -1)[..., :inputs]


def scaled(sums: Tensor, unit: Tensor, factor: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs of exact sums [N, O]: three rounded operations, two without a bias.

    unit: [N]; factor, bias: [O].
    """
    y = sums.to(torch.int32).float() * (unit.unsqueeze(1) * factor)
    return y if bias is None else y + bias


def linear(x: Carried, weight: Tensor, factor: Tensor, bias: Tensor | None = None) -> Tensor:
    """Output rows [N, O] of whole weights [O, 1, C]."""
    check_length(weight.shape[1] * weight.shape[2])
    sums = x.values.double() @ weight[:, 0].double().t()  # exact: far below 2^53
    return scaled(sums, _row_units(x), factor, bias)


def convolution(
    x: Carried,
    maps: tuple[int, int, int],
    weight: Tensor,
    kernel: tuple[int, int],
    factor: Tensor,
    bias: Tensor | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Output rows [B OH OW, O] of carriers on maps (B, H, W), padded with carrier 0.

    weight: whole [O, taps, C / groups]. All pixels of an image share a unit.
    """
    check_length(weight.shape[1] * weight.shape[2])
    batch, height, width = maps
    assert x.unit_rows == height * width, "taps of one sum share a unit"
    planes = x.values.double().reshape(batch, height, width, -1).permute(0, 3, 1, 2)
    kernels = weight.double().unflatten(1, kernel).permute(0, 3, 1, 2)
    sums = F.conv2d(planes, kernels, None, stride, padding, dilation, groups)
    rows = sums.permute(0, 2, 3, 1).reshape(-1, weight.shape[0])
    return scaled(rows, x.unit.repeat_interleave(rows.shape[0] // batch), factor, bias)


def check_length(length: int) -> None:
    """Raise where a sum of so many products may leave 32 bits."""
    if length > LONGEST_SUM:
        raise ConfigError(f"sums of {length} products; accepted: up to {LONGEST_SUM}")


def _row_units(x: Carried) -> Tensor:
    return x.unit.repeat_interleave(x.unit_rows)[: x.values.shape[0]]


def _blocks(per_row: Tensor, unit_rows: int) -> Tensor:
    """[N, K] -> [units, unit_rows K], short blocks filled with zeros."""
    rows, count = per_row.shape
    short = -rows % unit_rows
    if short:
        per_row = torch.cat([per_row, per_row.new_zeros(short, count)])
    return per_row.reshape(-1, unit_rows * count) if rows else per_row.new_zeros(0, count)


def _unit(steps: Tensor, most: int) -> Tensor:
    """[units, n] -> [units]; NaN if a step is."""
    return steps.amax(1) * _inverse(torch.tensor(float(most)))


def _multipliers(step: Tensor, unit: Tensor, bounded: Tensor, most: int) -> Tensor:
    ratio = step * _inverse(unit)
    return torch.where(bounded, ratio.floor(), ratio.ceil()).clamp(1, most)


def _inverse(x: Tensor) -> Tensor:
    """1 / x, one division."""
    return torch.div(torch.ones_like(x), x)


def _limits(bits: int, asymmetric: bool, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest q - z."""
    low, high = code_limits(bits, not asymmetric)
    if not asymmetric:
        return torch.full_like(zero, max(low, -LARGEST)), torch.full_like(zero, high)
    zero = zero.clamp(low, high)
    return low - zero, high - zero


def _carried(x: Tensor, inverse: Tensor, low: Tensor, high: Tensor, m: Tensor) -> Tensor:
    """Values m clamp(rint(x / step)) of groups x [..., n]; the others [...]."""
    q = torch.round(x * inverse.unsqueeze(-1))
    q = torch.minimum(torch.maximum(q, low.unsqueeze(-1)), high.unsqueeze(-1))
    return q * m.unsqueeze(-1)


def _bytes(values: Tensor) -> Tensor:
    return values.nan_to_num(0.0).to(torch.int8)


def _whole(multiplier: Tensor) -> Tensor:
    return multiplier.nan_to_num(0.0).to(torch.uint8)


__all__ = [
    "Carried",
    "carry_fixed",
    "carry_groups",
    "convolution",
    "linear",
    "most_multiplier",
    "scaled",
    "whole_weight",
]
