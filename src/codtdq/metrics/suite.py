"""Scores of a data set, gathered image by image."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError
from codtdq.metrics.measure import SCORE_NAMES, ImageScores, measure
from codtdq.metrics.pair import LEVELS

STATE_FORMAT = 1


class MetricSuite:
    """Running S, weighted F, E, F and MAE over a data set.

    Keeps nine numbers per image and two summed curves, never the maps. Threads may share one
    suite: only the adding up is under a lock, the measuring is not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._e_curve_sum: NDArray[np.float64] = np.zeros(LEVELS)
        self._f_curve_sum: NDArray[np.float64] = np.zeros(LEVELS)

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return MetricSuite.from_state, (self.state_dict(),)

    def update(
        self, pred: NDArray[np.uint8], gt: NDArray[np.uint8], name: str | None = None
    ) -> ImageScores:
        """Measure one pair of [H, W] uint8 maps, add it and return its scores."""
        scores = measure(pred, gt)
        row = {"name": name, **scores.as_dict()}
        with self._lock:
            self._rows.append(row)
            self._e_curve_sum += scores.e_curve
            self._f_curve_sum += scores.f_curve
        return scores

    def compute(self) -> dict[str, float]:
        """Return the data set scores and `count`.

        Mean and max of E and F are taken over the curve averaged over all images, so max is not
        the mean of per-image maxima.
        """
        with self._lock:
            count = len(self._rows)
            if count == 0:
                raise DataError("no image was measured: call update() at least once first")
            # fsum rounds once, so the order of images and shards has no effect.
            result = {key: math.fsum(r[key] for r in self._rows) / count for key in SCORE_NAMES}
            for letter, total in (("E", self._e_curve_sum), ("F", self._f_curve_sum)):
                result[f"{letter}_mean"] = float(total.mean()) / count
                result[f"{letter}_max"] = float(total.max()) / count
        return {**result, "count": count}

    def per_image(self) -> list[dict[str, Any]]:
        """Return a copy of each image's `name` and nine scores, in the order of arrival."""
        with self._lock:
            return [dict(row) for row in self._rows]

    def merge(self, other: MetricSuite) -> None:
        """Add all images of another suite to this one; the other is left as it is."""
        state = other.state_dict()
        with self._lock:
            self._rows.extend(state["per_image"])
            self._e_curve_sum += np.asarray(state["e_curve_sum"])
            self._f_curve_sum += np.asarray(state["f_curve_sum"])

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, in JSON types; a JSON round trip is lossless."""
        with self._lock:
            return {
                "format": STATE_FORMAT,
                "per_image": [dict(row) for row in self._rows],
                "e_curve_sum": self._e_curve_sum.tolist(),
                "f_curve_sum": self._f_curve_sum.tolist(),
            }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MetricSuite:
        """Rebuild a suite from `state_dict()`."""
        found = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        if found != STATE_FORMAT:
            raise DataError(
                f"metric state has format {found!r}: only {STATE_FORMAT} can be read; "
                "measure the images again"
            )
        suite = cls()
        rows = state.get("per_image", [])
        if not isinstance(rows, list):
            raise DataError("metric state has no list of images; measure the images again")
        suite._rows = [_checked_row(row) for row in rows]
        suite._e_curve_sum = _checked_curve(state, "e_curve_sum")
        suite._f_curve_sum = _checked_curve(state, "f_curve_sum")
        return suite


def _checked_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of one stored image row or raise DataError."""
    try:
        name = row["name"]
        scores = {key: float(row[key]) for key in SCORE_NAMES}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"metric state holds an unreadable image row ({error!r}): expected name and "
            f"{', '.join(SCORE_NAMES)}; measure the images again"
        ) from error
    return {"name": name, **scores}


def _checked_curve(state: Mapping[str, Any], key: str) -> NDArray[np.float64]:
    """Return one stored curve [256] or raise DataError."""
    try:
        curve = np.array(state.get(key, []), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"metric state has a non-numeric {key}; measure the images again"
        ) from error
    if curve.shape != (LEVELS,) or not np.isfinite(curve).all():
        raise DataError(
            f"metric state has {key} of shape {curve.shape}: expected {LEVELS} finite numbers; "
            "measure the images again"
        )
    return curve
