"""The joint histogram of grey level, mask and image quarter that most measures follow from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics import compiled
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
    native = compiled.takes(pair.pred)
    per_row, per_column = compiled.profiles(pair.mask) if native else _profiles(pair.mask)
    split: tuple[int, int] = pair.mask.shape
    box = None
    if per_row.any():
        split = (_centroid(per_row) + 1, _centroid(per_column) + 1)
        box = (*_extent(per_row), *_extent(per_column))
    histograms = compiled.quarter_histograms if native else _quarter_histograms
    quarters = histograms(pair.pred, pair.mask, split)
    return Counts(quarters, quarters.sum(axis=0), split, box)


def _profiles(mask: NDArray[np.bool_]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return how many pixels of each row and of each column are true."""
    ones = mask.view(np.uint8)
    rows, columns = (np.add.reduce(ones, axis=axis, dtype=np.uint32) for axis in (1, 0))
    return rows, columns


def _quarter_histograms(
    pred: NDArray[np.uint8], mask: NDArray[np.bool_], split: tuple[int, int]
) -> NDArray[np.int64]:
    """Return [4, 2, 256] pixels by quarter around the split point, by mask and by grey level."""
    codes = np.multiply(mask.view(np.uint8), np.uint16(LEVELS), dtype=np.uint16)
    np.add(codes, pred, out=codes)
    row, column = split
    parts = (codes[:row, :column], codes[:row, column:], codes[row:, :column], codes[row:, column:])
    quarters = np.stack([np.bincount(part.ravel(), minlength=2 * LEVELS) for part in parts])
    return quarters.reshape(4, 2, LEVELS).astype(np.int64, copy=False)


def _centroid(profile: NDArray[np.uint32]) -> int:
    """Return the mean index of a count profile, rounded half to even."""
    total = int(profile.sum(dtype=np.int64))
    moment = int(np.dot(np.arange(profile.size, dtype=np.int64), profile.astype(np.int64)))
    return round(moment / total)


def _extent(profile: NDArray[np.uint32]) -> tuple[int, int]:
    """Return first index and one past the last index of the non-zero counts."""
    present = np.flatnonzero(profile)
    return int(present[0]), int(present[-1]) + 1
