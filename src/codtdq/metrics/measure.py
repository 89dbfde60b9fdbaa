"""All scores of one prediction against its ground truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics.counts import Counts, count
from codtdq.metrics.pair import Pair, prepare
from codtdq.metrics.structure import s_measure
from codtdq.metrics.threshold import ThresholdCounts, threshold_scores
from codtdq.metrics.weighted import weighted_f

SCORE_NAMES = ("S", "wF", "E_adp", "E_mean", "E_max", "F_adp", "F_mean", "F_max", "MAE")


@dataclass(frozen=True, eq=False)
class ImageScores:
    """Scores of one image.

    e_curve, f_curve: [256] E and F at the thresholds 255, 254, ..., 0 of the quantised map.
    thresholds: the pixel counts behind the curves, also of precision and recall.
    """

    s: float
    wf: float
    e_adp: float
    f_adp: float
    mae: float
    e_curve: NDArray[np.float64]
    f_curve: NDArray[np.float64]
    thresholds: ThresholdCounts

    def as_dict(self) -> dict[str, float]:
        """Return the nine scalars by name; mean and max are over this image's own curve."""
        return {
            "S": self.s,
            "wF": self.wf,
            "E_adp": self.e_adp,
            "E_mean": float(self.e_curve.mean()),
            "E_max": float(self.e_curve.max()),
            "F_adp": self.f_adp,
            "F_mean": float(self.f_curve.mean()),
            "F_max": float(self.f_curve.max()),
            "MAE": self.mae,
        }


def measure(pred: NDArray[np.uint8], gt: NDArray[np.uint8]) -> ImageScores:
    """Score a prediction [H, W] uint8 against a ground truth [H, W] uint8 (object: > 128).

    The prediction is min-max scaled first, unless it is constant.
    """
    pair = prepare(pred, gt)
    counts = count(pair)
    thresholds = threshold_scores(pair, counts)
    return ImageScores(
        s=s_measure(pair, counts),
        wf=weighted_f(pair, counts),
        e_adp=thresholds.e_adaptive,
        f_adp=thresholds.f_adaptive,
        mae=mean_absolute_error(pair, counts),
        e_curve=thresholds.counts.e_curve(),
        f_curve=thresholds.counts.f_curve(),
        thresholds=thresholds.counts,
    )


def mean_absolute_error(pair: Pair, counts: Counts) -> float:
    """Return mean |prediction - mask|."""
    error = counts.joint[0] @ pair.values + counts.joint[1] @ (1 - pair.values)
    return float(error) / counts.pixels
