"""The joint histogram of grey level, mask and image quarter that most measures follow from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics.pair import LEVELS, Pair


@dataclass(frozen=True, eq=False)
class Counts:
    """Pixel counts of one pair.

    quarters: [4, 2, 256] pixels by quarter (top-left, top-right, bottom-left, bottom-right of
    the split point), by mask (0 background, 1 foreground) and by grey level.
    joint: [2, 256] the same over the whole image.
    split: (row, column), one past the rounded centroid of the foreground.
    box: (top, bottom, left, right) of the foreground, ends exclusive; None without foreground.
    """

    quarters: NDArray[np.int64]
    joint: NDArray[np.int64]
    split: tuple[int, int]
    box: tuple[int, int, int, int] | None

    @property
    def foreground(self) -> int:
        """Number of foreground pixels."""
        return int(self.joint[1].sum())

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return int(self.joint.sum())


def count(pair: Pair) -> Counts:
    """Build the histograms of a pair in one pass over the pixels."""
    height, width = pair.mask.shape
    ones = pair.mask.view(np.uint8)
    per_row = np.add.reduce(ones, axis=1, dtype=np.uint32)
    per_column = np.add.reduce(ones, axis=0, dtype=np.uint32)
    split, box = (height, width), None
    if per_row.any():
        split = (_centroid(per_row) + 1, _centroid(per_column) + 1)
        box = (*_extent(per_row), *_extent(per_column))

    codes = np.multiply(ones, np.uint16(LEVELS), dtype=np.uint16)
    np.add(codes, pair.pred, out=codes)
    row, column = split
    parts = (codes[:row, :column], codes[:row, column:], codes[row:, :column], codes[row:, column:])
    quarters = np.stack([np.bincount(part.ravel(), minlength=2 * LEVELS) for part in parts])
    quarters = quarters.reshape(4, 2, LEVELS).astype(np.int64, copy=False)
    return Counts(quarters, quarters.sum(axis=0), split, box)


def _centroid(profile: NDArray[np.uint32]) -> int:
    """Return the mean index of a count profile, rounded half to even."""
    total = int(profile.sum(dtype=np.int64))
    moment = int(np.dot(np.arange(profile.size, dtype=np.int64), profile.astype(np.int64)))
    return round(moment / total)


def _extent(profile: NDArray[np.uint32]) -> tuple[int, int]:
    """Return first index and one past the last index of the non-zero counts."""
    present = np.flatnonzero(profile)
    return int(present[0]), int(present[-1]) + 1
