"""Starting grids of PTQ4SAM and of the methods that build on it."""

from __future__ import annotations

import torch
from torch import Tensor

from codtdq.methods.collect import InputStats
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, grid_of
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.weights import UniformWeight, group_rows

POWER = 2.4  # of the error that a weight's grid is chosen by
RANGES = 100  # shares of the weight's range that are tried
ZEROS = 16  # zero-points that are tried with each: all of them at 4 bits
_COARSE = 5  # a fast search looks at every fifth range first, then at those between,
_NEAR = 5  # with this many zero-points around the natural one
_CHUNK = 1 << 15  # weight values that are searched at a time: they stay in the processor's cache


def averaged_range(stats: InputStats, *, per_channel: bool = False) -> tuple[Tensor, Tensor]:
    """(low, high): minimum and maximum of each image, averaged over images; [1] or [C].

    A pooled vector has one value per channel and image: the average of those would clip every other
    image, so it gets the range of all images.
    """
    if stats.positions == 1:
        low, high = stats.low, stats.high
        return (low, high) if per_channel else (low.amin().reshape(1), high.amax().reshape(1))
    if per_channel:
        return stats.image_low.mean(0), stats.image_high.mean(0)
    return stats.image_low.amin(1).mean().reshape(1), stats.image_high.amax(1).mean().reshape(1)


def averaged_grid(stats: InputStats, bits: int, *, per_channel: bool = False) -> StaticUniform:
    """The asymmetric grid over the averaged range."""
    return StaticUniform.spanning(*averaged_range(stats, per_channel=per_channel), bits)


def searched_weight(
    weight: Tensor, bits: int, *, exhaustive: bool, group: int | None = None
) -> UniformWeight:
    """A weight [O, ...] on asymmetric grids, per output channel or per group of its values, with
    the least |W - W_hat|^2.4 over 100 ranges x 16 zero-points; not exhaustive: from coarse to fine,
    near the natural zero-point.
    """
    rows = group_rows(weight, group)
    per_chunk = max(1, _CHUNK // max(rows.shape[1], 1))
    found = [_search(part, bits, exhaustive) for part in rows.split(per_chunk)]
    step, zero = (torch.cat([grid[i] for grid in found]) for i in range(2))
    return UniformWeight.quantize(weight, bits, step=step, zero=zero, group=group)


def _search(rows: Tensor, bits: int, exhaustive: bool) -> tuple[Tensor, Tensor]:
    """(step, zero), each [O, 1], of rows [O, K]."""
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    full, natural = grid_of(low, high, bits, symmetric=False)
    first, last = code_limits(bits, symmetric=False)
    count = min(ZEROS if exhaustive else _NEAR, last + 1)
    start = (natural - count // 2).clamp(first, last + 1 - count)
    zeros = [start + k for k in range(count)]
    best = _Best(rows, first, last)
    if exhaustive:
        for index in range(1, RANGES + 1):
            best.try_all(full, torch.full_like(full, index), zeros)
        return best.step, best.zero
    for index in range(_COARSE, RANGES + 1, _COARSE):
        best.try_all(full, torch.full_like(full, index), zeros)
    centre = best.index.clone()
    for shift in (s for s in range(1 - _COARSE, _COARSE) if s):
        around = [(best.zero + k).clamp(first, last) for k in (-1, 0, 1)]
        best.try_all(full, (centre + shift).clamp(1, RANGES), around)
    return best.step, best.zero


class _Best:
    """The best grid of each row so far."""

    def __init__(self, rows: Tensor, first: int, last: int) -> None:
        self._rows, self._limits = rows, (first, last)
        self.error = rows.new_full((rows.shape[0], 1), torch.inf)
        self.step, self.zero, self.index = (torch.ones_like(self.error) for _ in range(3))

    def try_all(self, full: Tensor, index: Tensor, zeros: list[Tensor]) -> None:
        """Ranges index/100 of the whole, [O, 1], with each of the zero-points [O, 1]."""
        step = (full * index / RANGES).clamp(min=EPS)
        for zero in zeros:
            distance = fake_shifted(self._rows, step, zero, *self._limits).sub_(self._rows)
            error = distance.abs_().pow_(POWER).mean(1, keepdim=True)
            better = error < self.error
            for name, value in (("error", error), ("step", step), ("zero", zero), ("index", index)):
                setattr(self, name, torch.where(better, value, getattr(self, name)))
