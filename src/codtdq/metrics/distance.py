"""Exact squared Euclidean distance to a mask, up to a reach, in 16-bit vector operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics import compiled

MAX_REACH = 127  # 2 * reach^2 fits int16 and reach + 64 fits uint8
BAND = 192  # columns handled together, so that the working set stays in the second-level cache
CHECK_EVERY = 8  # steps between looks at whether all pixels are settled


def squared_distance(mask: NDArray[np.bool_], reach: int) -> NDArray[np.int16]:
    """Return min(squared distance to the nearest true pixel, reach^2) of each pixel.

    mask: [H, W], at least one pixel true.
    """
    assert 1 <= reach <= MAX_REACH and mask.any()
    return (compiled.squared_distance if compiled.takes(mask) else _in_numpy)(mask, reach)


def _in_numpy(mask: NDArray[np.bool_], reach: int) -> NDArray[np.int16]:
    """Find the distance g along each row, then d(y, x) = min over k of g(y + k, x)^2 + k^2.

    The minimum is taken by shifting whole blocks of rows.
    """
    rows = np.flatnonzero(mask.any(axis=1))
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    along_rows = _row_distance(mask[top:bottom], reach)
    result = np.empty(mask.shape, np.int16)
    for start in range(0, mask.shape[1], BAND):
        band = slice(start, start + BAND)
        sources = along_rows[:, band].astype(np.int16)
        np.multiply(sources, sources, out=sources)
        settled = np.full((mask.shape[0], sources.shape[1]), reach * reach, np.int16)
        settled[top:bottom] = sources
        _spread(sources, settled, top, reach)
        result[:, band] = settled
    return result


def _row_distance(mask: NDArray[np.bool_], reach: int) -> NDArray[np.uint8]:
    """Return min(distance to the nearest true pixel of the same row, reach), [H, W].

    Steps of 1, 2, 4, ... in both directions reach every shift with its own length as the cost.
    Rows lie behind one another in memory, kept apart by `reach` columns of padding.
    """
    height, width = mask.shape
    padded = np.full((height, width + reach), reach, np.uint8)
    padded[:, :width][mask] = 0
    flat = padded.reshape(-1)
    moved = np.empty_like(flat)
    step = 1
    while step < min(reach, width):
        np.add(flat, np.uint8(step), out=moved)
        ahead, behind = flat[step:], flat[:-step]
        np.minimum(ahead, moved[:-step], out=ahead)
        np.minimum(behind, moved[step:], out=behind)
        step *= 2
    return padded[:, :width]


def _spread(sources: NDArray[np.int16], settled: NDArray[np.int16], top: int, reach: int) -> None:
    """Lower `settled` [H, B] to min over k of sources(y + k) + k^2, in place.

    sources: [h, B] squared row distances of the rows top .. top + h of `settled`.
    A source row matters at upward shift k only if the row above exceeds it by 2k or more
    somewhere: otherwise that row reaches the same target at least as cheaply with shift k - 1.
    """
    rise = np.diff(sources, axis=0)  # [h - 1, B]
    always = [reach * reach]
    upward = always + (-rise.min(axis=1)).tolist()
    downward = rise.max(axis=1).tolist() + always
    _shift_rows(sources.copy(), settled, top, reach, -1, upward)
    _shift_rows(sources.copy(), settled, top, reach, 1, downward)


def _shift_rows(
    costs: NDArray[np.int16],
    settled: NDArray[np.int16],
    top: int,
    reach: int,
    direction: int,
    gains: list[int],
) -> None:
    """Offer the source rows to the targets k rows away in one direction, for k = 1 .. reach - 1.

    costs: [h, B] squared row distances, overwritten with + k^2. gains: [h] of `_spread`.
    """
    first, last = 0, costs.shape[0]
    cheapest, ceiling = int(costs.min()), reach * reach
    for k in range(1, reach):
        while first < last and gains[first] < 2 * k:
            first += 1
        while first < last and gains[last - 1] < 2 * k:
            last -= 1
        inside_first = max(first, k - top) if direction < 0 else first
        inside_last = min(last, settled.shape[0] - top - k) if direction > 0 else last
        if k % CHECK_EVERY == 0:
            ceiling = int(settled.max())
        if inside_first >= inside_last or cheapest + k * k >= ceiling:
            return
        active = costs[first:last]
        np.add(active, np.int16(2 * k - 1), out=active)  # k^2 - (k - 1)^2
        shift = top + direction * k
        targets = settled[inside_first + shift : inside_last + shift]
        np.minimum(targets, costs[inside_first:inside_last], out=targets)
