"""Range searches that several methods share: percentiles kept by mean squared error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from codtdq.numerics.affine import code_limits, fake_shifted, grid_of, offset_grid
from codtdq.schemes.weights import UniformWeight, group_rows

PERCENTILES = (0.999, 0.9999, 0.99999)
_TAIL = 64  # a quantile with so small a share beyond it is found without sorting
_QUANTILE_LIMIT = 1 << 23  # torch.quantile refuses inputs of 2^24 values


def quantile_rows(rows: Tensor, q: float) -> Tensor:
    """Quantile of each row, linear between neighbours: [G, n] -> [G, 1], for any size."""
    length = rows.shape[1]
    position = q * (length - 1)
    upper = q >= 0.5
    count = length - math.floor(position) if upper else math.ceil(position) + 1
    if count * _TAIL <= length:  # a tail: no need to sort all
        ends = rows.topk(count, 1, largest=upper).values[:, -2:]
        part = position % 1 if upper else -position % 1  # of the way back to the last but one
        return torch.lerp(ends[:, -1:], ends[:, :1], part)
    if length > _QUANTILE_LIMIT:
        return rows.kthvalue(round(position) + 1, dim=1, keepdim=True).values
    chunk = max(1, _QUANTILE_LIMIT // max(length, 1))
    return torch.cat([torch.quantile(part, q, 1, keepdim=True) for part in rows.split(chunk)])


def percentile_grid(
    rows: Tensor,
    bits: int,
    *,
    symmetric: bool = False,
    anywhere: bool = False,
    percentiles: Sequence[float] = PERCENTILES,
) -> tuple[Tensor, Tensor]:
    """(step, zero), each [G, 1]: of the grids between the percentiles 1-p and p of each row of
    [G, n], the one with the least mean squared error.

    anywhere: the range need not contain zero; its zero-point may then lie outside the codes.
    """
    limits = code_limits(bits, symmetric)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for p in percentiles:
        low, high = quantile_rows(rows, 1 - p), quantile_rows(rows, p)
        step, zero = (offset_grid if anywhere else grid_of)(low, high, bits, symmetric)
        error = (fake_shifted(rows, step, zero, *limits) - rows).square().mean(1, keepdim=True)
        if best is None:
            best = (error, step, zero)
        else:
            better = error < best[0]
            best = tuple(  # type: ignore[assignment]
                torch.where(better, new, old) for new, old in zip((error, step, zero), best)
            )
    assert best is not None
    return best[1], best[2]


def percentile_weight(
    weight: Tensor, bits: int, *, symmetric: bool = False, group: int | None = None
) -> UniformWeight:
    """A weight on grids per output channel or group by `percentile_grid`: a common W4 baseline."""
    step, zero = percentile_grid(group_rows(weight, group), bits, symmetric=symmetric)
    return UniformWeight.quantize(
        weight, bits, step=step, zero=zero, symmetric=symmetric, group=group
    )
