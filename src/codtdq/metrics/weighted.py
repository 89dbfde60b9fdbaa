"""Weighted F-measure: errors weighted by their distance from the object and their neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics import compiled
from codtdq.metrics.counts import Counts
from codtdq.metrics.distance import squared_distance
from codtdq.metrics.missed import RADIUS, missed_error
from codtdq.metrics.pair import EPS, LEVELS, Pair

HALF_LIFE = 5.0  # pixels over which the discount of a false alarm near the object halves
# Beyond this distance the discount is below 2^-21.6 and is not followed further. That moves the
# score Q by less than 1e-7: |dQ| <= dF / (4 F), and F, the weighted false alarms, changes by at
# most 2^-21.6 of itself.
REACH = 108
BLOCK = 32  # rows discounted together, so that the temporaries stay in cache

_DISCOUNT = np.exp2(-np.sqrt(np.arange(REACH * REACH + 1)) / HALF_LIFE)
_DISCOUNT.setflags(write=False)


def weighted_f(pair: Pair, counts: Counts) -> float:
    """Return 2 P R / (P + R + eps) with weighted precision P and recall R; zero without object.

    All sums are kept in grey levels: an error of the scaled map is an integer difference of
    grey levels divided by the range of the prediction.
    """
    if counts.box is None:
        return 0.0
    low, span = pair.lowest, pair.highest - pair.lowest
    if span == 0:
        low, span = 0, 255  # a constant map is not stretched
    rows, columns = _window(pair, counts.box, low)
    mask, pred = pair.mask[rows, columns], pair.pred[rows, columns]
    squared = squared_distance(mask, REACH)

    alarms = float(counts.joint[0] @ (np.arange(LEVELS) - low))
    false_positive = (2 * alarms - _discounted(pred, mask, squared, low)) / span

    top, bottom, left, right = counts.box
    box = (top - rows.start, bottom - rows.start, left - columns.start, right - columns.start)
    on_object = (slice(*box[:2]), slice(*box[2:]))
    deficit = np.subtract(np.uint8(low + span), pred[on_object]) * mask[on_object]
    missed = missed_error(deficit, squared, box) / span

    area = counts.foreground
    true_positive = area - missed
    recall = 1 - missed / area
    precision = true_positive / (true_positive + false_positive + EPS)
    return 2 * recall * precision / (recall + precision + EPS)


def _window(pair: Pair, box: tuple[int, int, int, int], low: int) -> tuple[slice, slice]:
    """Return the rows and columns in which the distance to the object has an effect.

    They hold the object with the margin of the Gaussian window, and the background errors that
    lie within reach of it; elsewhere the discount is negligible or multiplies a zero error.
    """
    wrong = pair.pred != low
    slices = []
    for axis, (start, stop) in enumerate((box[:2], box[2:])):
        present = np.flatnonzero(wrong.any(axis=1 - axis))
        first, last = (int(present[0]), int(present[-1]) + 1) if present.size else (start, stop)
        first = min(start - RADIUS, max(first, start - REACH))
        last = max(stop + RADIUS, min(last, stop + REACH))
        slices.append(slice(max(first, 0), min(last, pair.mask.shape[axis])))
    return slices[0], slices[1]


def _discounted(
    pred: NDArray[np.uint8], mask: NDArray[np.bool_], squared: NDArray[np.int16], low: int
) -> float:
    """Return the sum over the background of error * 2^(-distance / 5), in grey levels."""
    if compiled.takes(pred):
        return compiled.discounted(pred, mask, squared, low, _DISCOUNT)
    return _discounted_in_numpy(pred, mask, squared, low)


def _discounted_in_numpy(
    pred: NDArray[np.uint8], mask: NDArray[np.bool_], squared: NDArray[np.int16], low: int
) -> float:
    """Do what `_discounted` says in numpy."""
    total = 0.0
    for start in range(0, pred.shape[0], BLOCK):
        rows = slice(start, start + BLOCK)
        excess = np.subtract(pred[rows], np.uint8(low)) * ~mask[rows]
        discount = np.take(_DISCOUNT, squared[rows])
        np.multiply(discount, excess, out=discount)
        total += float(discount.sum())
    return total
