"""Measures of the binarised prediction: F-measure and E-measure, adaptive and as curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics.counts import Counts
from codtdq.metrics.pair import EPS, LEVELS, Pair, float_map

BETA_SQUARED = 0.3
# Wider than any rounding error of a mean over 2^32 pixels, far narrower than one grey level.
TIE_MARGIN = 1e-9


@dataclass(frozen=True, eq=False)
class ThresholdCounts:
    """What the curves of one image follow from, at the 256 thresholds 255, 254, ..., 0.

    hits, alarms: [256] pixels that reach the threshold inside and outside of the object.
    """

    hits: NDArray[np.float64]
    alarms: NDArray[np.float64]
    area: int  # pixels of the object
    pixels: int  # of the image

    def precision_recall(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return precision and recall, [256] each; both zero without a hit."""
        return precision_recall(self.hits, self.alarms, self.area)

    def f_curve(self) -> NDArray[np.float64]:
        """Return the F-measure, [256]."""
        return f_measure(self.hits, self.alarms, self.area)

    def e_curve(self) -> NDArray[np.float64]:
        """Return the E-measure, [256]."""
        return e_measure(self.hits, self.alarms, self.area, self.pixels)


@dataclass(frozen=True, eq=False)
class ThresholdScores:
    """F and E at the adaptive threshold, and what their curves follow from."""

    f_adaptive: float
    e_adaptive: float
    counts: ThresholdCounts


def threshold_scores(pair: Pair, counts: Counts) -> ThresholdScores:
    """Score the prediction binarised with `>=` at each threshold."""
    area, total = counts.foreground, counts.pixels
    # Levels that do not occur lie outside [0, 1]; their counts are zero, clipping is harmless.
    bins = np.clip(pair.values * 255, 0, 255).astype(np.intp)
    hits = _at_least(bins, counts.joint[1])
    alarms = _at_least(bins, counts.joint[0])

    chosen = pair.values >= adaptive_threshold(pair, counts)
    hit = np.array([counts.joint[1][chosen].sum()], dtype=np.float64)
    alarm = np.array([counts.joint[0][chosen].sum()], dtype=np.float64)
    return ThresholdScores(
        f_adaptive=float(f_measure(hit, alarm, area)[0]),
        e_adaptive=float(e_measure(hit, alarm, area, total)[0]),
        counts=ThresholdCounts(hits, alarms, area, total),
    )


def adaptive_threshold(pair: Pair, counts: Counts) -> float:
    """Return min(2 * mean(prediction), 1)."""
    levels = counts.joint.sum(axis=0)
    threshold = min(2 * float(levels @ pair.values) / counts.pixels, 1.0)
    distance = np.abs(pair.values[levels > 0] - threshold)
    if distance.min() < TIE_MARGIN:
        # A grey level sits on the threshold, so the rounding of the mean decides on which side
        # its pixels fall; follow the pixel-by-pixel sum, which is what published tools do.
        threshold = min(2 * float(float_map(pair).mean()), 1.0)
    return threshold


def precision_recall(
    hits: NDArray[np.float64], alarms: NDArray[np.float64], area: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return hits / marked and hits / area, [T] each; zero where nothing is marked or there."""
    return hits / np.maximum(hits + alarms, 1), hits / max(area, 1)


def f_measure(
    hits: NDArray[np.float64], alarms: NDArray[np.float64], area: int
) -> NDArray[np.float64]:
    """Return (1 + b2) P R / (b2 P + R), b2 = 0.3, zero without a hit.

    hits, alarms: [T] pixels predicted as object inside and outside of the object of `area` pixels.
    """
    precision, recall = precision_recall(hits, alarms, area)
    denominator = BETA_SQUARED * precision + recall
    return (1 + BETA_SQUARED) * precision * recall / np.where(hits > 0, denominator, 1)


def e_measure(
    hits: NDArray[np.float64], alarms: NDArray[np.float64], area: int, total: int
) -> NDArray[np.float64]:
    """Return the enhanced alignment of binary maps from their confusion counts.

    Both maps have two values, so the alignment takes four values, one per confusion cell:
    a = 2 p g / (p^2 + g^2 + eps) with mean-free p and g; E = sum((a + 1)^2 / 4) / (N - 1 + eps).
    hits, alarms: [T]. An empty (full) object scores the share of pixels left out (marked).
    """
    marked = hits + alarms
    if area == 0:
        aligned = total - marked
    elif area == total:
        aligned = marked
    else:
        pred_mean, gt_mean = marked / total, area / total
        aligned = np.zeros_like(marked)
        misses = area - hits
        cells = (
            (hits, 1 - pred_mean, 1 - gt_mean),
            (alarms, 1 - pred_mean, -gt_mean),
            (misses, -pred_mean, 1 - gt_mean),
            (total - marked - misses, -pred_mean, -gt_mean),
        )
        for pixels, pred_value, gt_value in cells:
            alignment = 2 * pred_value * gt_value / (pred_value**2 + gt_value**2 + EPS)
            aligned += pixels * (alignment + 1) ** 2 / 4
    return aligned / (total - 1 + EPS)


def _at_least(bins: NDArray[np.intp], levels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return [256] the pixels whose quantised value reaches threshold 255, 254, ..., 0."""
    return np.cumsum(np.bincount(bins, weights=levels, minlength=LEVELS)[::-1])
