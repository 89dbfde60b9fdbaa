"""Scores of one method on one data set: gathered, kept in a file, summed up."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.io import atomic_path
from codtdq.lab.score.worker import Measured
from codtdq.metrics.measure import SCORE_NAMES
from codtdq.metrics.pair import LEVELS
from codtdq.metrics.suite import STATE_FORMAT as SUITE_FORMAT
from codtdq.metrics.suite import MetricSuite
from codtdq.metrics.threshold import ThresholdCounts

STATE_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Curves:
    """Means over images at the thresholds 0, 1, ..., 255; [256] each."""

    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f: NDArray[np.float64]
    e: NDArray[np.float64]


@dataclass
class Cell:
    """What is known of one method on one data set, by name of the image."""

    method: str
    dataset: str
    images: dict[str, tuple[str, Measured]] = field(default_factory=dict)  # with a stamp each

    def add(self, name: str, stamp: str, measured: Measured) -> None:
        """Take the scores of one image; stamp: what its files looked like."""
        self.images[name] = (stamp, measured)

    def known(self, name: str, stamp: str) -> bool:
        """Whether these very files were scored already."""
        return name in self.images and self.images[name][0] == stamp

    def keep_only(self, names: set[str]) -> None:
        """Forget images that are no longer asked for."""
        self.images = {name: self.images[name] for name in sorted(names & set(self.images))}

    def per_image(self) -> list[dict[str, Any]]:
        """Return name and scores of every image, sorted by name."""
        return [
            {"name": name, **dict(zip(SCORE_NAMES, self.images[name][1].scores))}
            for name in sorted(self.images)
        ]

    def means(self) -> dict[str, float]:
        """Return the scores of the data set and `count`, as `codtdq eval` has them."""
        curves = self._sums()
        state = {
            "format": SUITE_FORMAT,
            "per_image": self.per_image(),
            "e_curve_sum": curves[3].tolist(),
            "f_curve_sum": curves[2].tolist(),
        }
        return MetricSuite.from_state(state).compute()

    def curves(self) -> Curves:
        """Return the mean curves, lowest threshold first."""
        precision, recall, f, e = self._sums()[:, ::-1] / len(self.images)
        return Curves(precision, recall, f, e)

    def _sums(self) -> NDArray[np.float64]:
        """Sums over images, in the order of names, of precision, recall, F and E: [4, 256]."""
        total = np.zeros((4, LEVELS))
        for name in sorted(self.images):
            one = self.images[name][1]
            counts = ThresholdCounts(
                one.hits.astype(np.float64), one.alarms.astype(np.float64), one.area, one.pixels
            )
            total[:2] += counts.precision_recall()
            total[2] += counts.f_curve()
            total[3] += counts.e_curve()
        return total

    def save(self, path: Path) -> None:
        """Write all of it, so that a later run goes on from here."""
        names = sorted(self.images)
        found = [self.images[name] for name in names]
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                format=np.array(STATE_FORMAT),
                names=np.array(names, dtype=np.str_),
                stamps=np.array([stamp for stamp, _ in found], dtype=np.str_),
                scores=np.array([m.scores for _, m in found], np.float64),
                hits=np.array([m.hits for _, m in found], np.int32),
                alarms=np.array([m.alarms for _, m in found], np.int32),
                area=np.array([m.area for _, m in found], np.int64),
                pixels=np.array([m.pixels for _, m in found], np.int64),
            )

    def load(self, path: Path) -> str | None:
        """Take what an earlier run kept; a note if its file could not be used."""
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                state = {key: file[key] for key in file.files}
            if int(state["format"]) != STATE_FORMAT:
                return f"{path} has another format; its images are scored again"
            for i, name in enumerate(state["names"].tolist()):
                measured = Measured(
                    tuple(state["scores"][i].tolist()),
                    state["hits"][i],
                    state["alarms"][i],
                    int(state["area"][i]),
                    int(state["pixels"][i]),
                )
                self.images[name] = (str(state["stamps"][i]), measured)
        except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
            self.images = {}
            return f"{path} is damaged ({type(error).__name__}); its images are scored again"
        return None
