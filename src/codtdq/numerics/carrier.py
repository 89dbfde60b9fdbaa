"""Carriers: signed bytes that stand for the codes of every scheme, so that one product serves all.

Inputs: x_hat[t, k] = u[t] a[t, k] with a = m (q - z) in -127..127. q is the code, z the zero-point,
m a whole multiplier 1..M of its group or channel, u a float32 of the row (or of an image), and
M = floor(127 / largest |q - z|): 15 for 4 symmetric bits, 8 for 4 bits with a zero-point. How a
scheme's steps become units and multipliers, `numerics.carry` tells.

Weights: w = v[n] p[n, g] r[n, k] with r in -8..7 and a whole 1 <= |p| <= 15, or r in -127..127 and
p = 1. Both factors are bytes, the sum over all k is exact in 32 bits (up to 130,000 products), and

    y[t, n] = float(sum a p r) * (u[t] v[n]) + b[n].

Every float operation here is one float32 operation of the kernels, in their order: codes, units and
outputs agree bit by bit with every instruction set and any number of threads. Where a row holds a
NaN or an infinity, its unit is NaN and its bytes are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.numerics.affine import qmax_of, qmin_of
from codtdq.numerics.grouping import group_count

LARGEST = 127  # carriers are -127..127
LARGEST_MULTIPLIER = 15  # of weights: |p r| <= 120
LONGEST_SUM = 130_000  # products that a 32-bit sum holds
EXACT_FLOAT = 1 << 24  # whole numbers up to it are float32 numbers
FACTOR_BITS = 32  # a float32 per output, token or image


class Carried(NamedTuple):
    """A quantized input."""

    values: Tensor  # int8 [rows, C], or [rows, 2 C]: a value is the sum of two bytes
    unit: Tensor  # float32 [ceil(rows / unit_rows)], or [..., C]: one for each channel as well
    multiplier: Tensor  # uint8 [rows, K], [pixel groups, C], [C] or [1]; 0 where there is none
    unit_rows: int  # rows that share a unit
    doubled: bool = False  # whether values have two bytes

    def decoded(self) -> Tensor:
        """Rows x_hat [rows, C]."""
        values = self.values.float()
        if self.doubled:
            values = values.unflatten(1, (2, -1)).sum(1)
        unit = row_units(self)
        return values * (unit if unit.ndim == 2 else unit.unsqueeze(1))


def most_multiplier(bits: int, asymmetric: bool = False) -> int:
    """M: multipliers up to it keep m (q - z) inside a signed byte."""
    if not 2 <= bits <= (7 if asymmetric else 8):
        raise ConfigError(
            f"carriers of {bits} bits {'with' if asymmetric else 'without'} a zero-point do not "
            f"fit a signed byte; accepted: 2 to {7 if asymmetric else 8}"
        )
    reach = 2**bits - 1 if asymmetric else 2 ** (bits - 1)
    return max(LARGEST // reach, 1)


def weight_limits(bits: int) -> tuple[int, int]:
    """Least and largest code of a weight."""
    return max(qmin_of(bits), -LARGEST), qmax_of(bits)


def weight_multiplier(bits: int) -> int:
    """Largest multiplier of a weight: 15 up to 4 bits, 1 from 7 bits on."""
    return max(min(LARGEST // 2 ** (bits - 1), LARGEST_MULTIPLIER), 1)


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

    unit: [N], or [N, O]; factor, bias: [O].
    """
    unit = unit if unit.ndim == 2 else unit.unsqueeze(1)
    y = sums.to(torch.int32).float() * (unit * factor)
    return y if bias is None else y + bias


def linear(
    x: Carried,
    weight: Tensor,
    factor: Tensor,
    bias: Tensor | None = None,
    *,
    cuts: Sequence[int] = (),
) -> Tensor:
    """Output rows [N, O] of whole weights [O, 1, C]; cuts: as in `exact_cuts`."""
    weight = _exact(doubled(x, weight))[:, 0]
    values = x.values.to(weight.dtype)
    parts = [a @ b.t() for a, b in _cut(values, weight, cuts)]
    return scaled(_whole_sum(parts), row_units(x), factor, bias)


def convolution(
    x: Carried,
    maps: tuple[int, int, int],
    weight: Tensor,
    kernel: tuple[int, int],
    factor: Tensor,
    bias: Tensor | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
    mode: str = "constant",
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    cuts: Sequence[int] = (),
) -> tuple[Tensor, tuple[int, int]]:
    """Output rows [B OH OW, O] of carriers on maps (B, H, W), and (OH, OW).

    weight: whole [O, taps, C / groups]. pads: left, right, top, bottom, with carrier 0 unless
    `mode` says otherwise. All pixels of an image share a unit, or all of a channel where channels
    do not mix; under a kernel of one tap each pixel may have its own. cuts: as in `exact_cuts`.
    """
    batch, height, width = maps
    weight = _exact(doubled(x, weight))
    assert groups == 1 or not (x.doubled or cuts)
    planes = x.values.to(weight.dtype).reshape(batch, height, width, -1).permute(0, 3, 1, 2)
    if any(pads):
        planes = F.pad(planes, pads, mode)
    kernels = weight.unflatten(1, kernel).permute(0, 3, 1, 2)
    parts = _cut(planes, kernels, cuts)
    sums = _whole_sum([F.conv2d(a, b, None, stride, 0, dilation, groups) for a, b in parts])
    out = (sums.shape[2], sums.shape[3])
    rows = sums.permute(0, 2, 3, 1).reshape(-1, weight.shape[0])
    if x.unit.shape[0] == batch:  # of whole images
        unit = x.unit.repeat_interleave(out[0] * out[1], 0)
    else:
        assert kernel == (1, 1) and not any(pads), "taps of one sum share a unit"
        unit = row_units(x).reshape(maps)[:, :: stride[0], :: stride[1]].flatten()
    if unit.ndim == 2:  # outputs c m .. c m + m - 1 belong to channel c
        unit = unit.repeat_interleave(weight.shape[0] // unit.shape[1], 1)
    return scaled(rows, unit, factor, bias), out


def doubled(x: Carried, weight: Tensor) -> Tensor:
    """The weight [O, T, I] as often as a value has bytes."""
    return weight.repeat(1, 1, 2) if x.doubled else weight


def row_units(x: Carried) -> Tensor:
    """The unit of every row: [rows], or [rows, C]."""
    return x.unit.repeat_interleave(x.unit_rows, 0)[: x.values.shape[0]]


def check_length(length: int) -> None:
    """Raise where a sum of so many products may leave 32 bits."""
    if length > LONGEST_SUM:
        raise ConfigError(f"sums of {length} products; accepted: up to {LONGEST_SUM}")


def exact_dtype(weight: Tensor) -> torch.dtype:
    """A float type in which all sums under whole weights [O, T, I] are exact, in any order."""
    check_length(weight.shape[1] * weight.shape[2])
    largest = weight.abs().flatten(1).sum(1).max() if weight.numel() else 0
    # values of two bytes are twice as large
    return torch.float32 if 2 * LARGEST * int(largest) <= EXACT_FLOAT else torch.float64


def exact_cuts(weight: Tensor) -> list[int]:
    """Inputs at which sums under whole weights [O, T, I] are cut to be exact in float32 alone.

    For runtimes that multiply no float64. Parts are as long as they may be; their sums are added
    as whole numbers.
    """
    check_length(weight.shape[1] * weight.shape[2])
    most = EXACT_FLOAT // LARGEST
    sums = weight.abs().sum(1).long().cumsum(1)  # [O, I]
    if weight.numel() and int(weight.abs().sum(1).max()) > most:
        raise ConfigError(f"kernels of {weight.shape[1]} taps; sums in float32 are not exact")
    cuts: list[int] = []
    if not weight.numel() or int(sums[:, -1].max()) <= most:
        return cuts
    begin = torch.zeros_like(sums[:, :1])
    for place in range(1, weight.shape[2]):
        if int((sums[:, place : place + 1] - begin).max()) > most:
            cuts.append(place)
            begin = sums[:, place - 1 : place]
    return cuts


def _cut(x: Tensor, weight: Tensor, cuts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Parts of both along axis 1. Without cuts they stay whole: torch refuses what does not fit."""
    if not cuts:
        return [(x, weight)]
    return [(x[:, a:b], weight[:, a:b]) for a, b in zip([0, *cuts], [*cuts, weight.shape[1]])]


def _whole_sum(parts: list[Tensor]) -> Tensor:
    """The sum of exact parts; of several as whole numbers, for which a float may be too short."""
    total = parts[0]
    for part in parts[1:]:
        total = total.to(torch.int32) + part.to(torch.int32)
    return total


def _exact(weight: Tensor) -> Tensor:
    return weight if weight.is_floating_point() else weight.to(exact_dtype(weight))
