"""S-measure: structural similarity of object and region, from histograms alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics.counts import Counts
from codtdq.metrics.pair import EPS, Pair, float_map

ALPHA = 0.5  # share of the object term


def s_measure(pair: Pair, counts: Counts) -> float:
    """Return max(0, alpha * object + (1 - alpha) * region); plain means for empty or full masks."""
    area, total = counts.foreground, counts.pixels
    if area in (0, total):
        mean = float(counts.joint.sum(axis=0) @ pair.values) / total
        return mean if area else 1 - mean
    share = area / total
    object_score = share * _object_score(counts.joint[1], pair.values)
    object_score += (1 - share) * _object_score(counts.joint[0], 1 - pair.values)
    return max(0.0, ALPHA * object_score + (1 - ALPHA) * _region_score(pair, counts))


def _object_score(levels: NDArray[np.int64], values: NDArray[np.float64]) -> float:
    """Return 2 m / (m^2 + 1 + s + eps) with mean m and sample deviation s of one mask side."""
    number = int(levels.sum())
    mean = float(levels @ values) / number
    spread = 0.0
    if number > 1:
        spread = math.sqrt(float(levels @ (values - mean) ** 2) / (number - 1))
    return 2 * mean / (mean**2 + 1 + spread + EPS)


def _region_score(pair: Pair, counts: Counts) -> float:
    """Return the area-weighted similarity of the four quarters.

    A quarter without pixels has weight zero and is left out, which keeps the score finite when
    the centroid falls on the last row or column.
    """
    height, width = pair.mask.shape
    row, column = counts.split
    above, below = slice(0, row), slice(row, height)
    left, right = slice(0, column), slice(column, width)
    windows = ((above, left), (above, right), (below, left), (below, right))
    score = 0.0
    for window, levels in zip(windows, counts.quarters):
        weight = int(levels.sum()) / counts.pixels
        if weight:
            score += weight * _similarity(pair, window, levels)
    return score


def _similarity(pair: Pair, window: tuple[slice, slice], levels: NDArray[np.int64]) -> float:
    """Return 4 x y c / ((x^2 + y^2)(vx + vy) + eps) of one quarter.

    x, y: means of prediction and mask; vx, vy, c: their variances and covariance.
    levels: [2, 256] counts of the quarter. Zero over zero counts as a perfect match.
    """
    both = levels.sum(axis=0)
    number, area = int(both.sum()), int(levels[1].sum())
    if area in (0, number) and np.count_nonzero(both) == 1:
        return _flat_similarity(pair, window, int(both.argmax()), area > 0)
    x, y = float(both @ pair.values) / number, area / number
    offset = pair.values - x
    freedom = number - 1 + EPS
    variance_x = float(both @ offset**2) / freedom
    variance_y = (area * (1 - y) ** 2 + (number - area) * y**2) / freedom
    covariance = ((1 - y) * float(levels[1] @ offset) - y * float(levels[0] @ offset)) / freedom
    numerator = 4 * x * y * covariance
    return numerator / ((x**2 + y**2) * (variance_x + variance_y) + EPS)


def _flat_similarity(
    pair: Pair, window: tuple[slice, slice], level: int, foreground: bool
) -> float:
    """Return the similarity where prediction and mask are both constant: one or zero.

    In exact arithmetic both variances vanish and the match is perfect. In floating point the
    mean of N equal values may differ from the value by one bit, and then published tools see a
    tiny variance and score zero. The pixel sum is redone to give the same answer.
    """
    value = float(pair.values[level])
    if value in (0.0, 1.0):  # sums of these are exact
        return 1.0
    return 1.0 if float(float_map(pair)[window].mean()) == value else 0.0
