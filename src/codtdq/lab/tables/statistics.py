"""Paired comparison of methods, image by image, with a bootstrap confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK = 4_000_000  # counts held at a time, 32 MB

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """A method against a reference on the same images.

    difference: mean over images of method minus reference.
    low, high: percentile bootstrap interval of that mean.
    won: share of images on which the method is better; ties count half.
    """

    images: int
    difference: float
    low: float
    high: float
    won: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def paired(
    scores: Mapping[str, Mapping[str, float]], reference: str
) -> tuple[Floats, list[str], list[str]]:
    """Line scores up by image name.

    scores: name -> {image name -> score}. Returns the differences to the reference [n, m], the
    names of the m others and those of the n images. Other images than the reference's are an
    error: a difference of means over different images is not paired.
    """
    images = list(scores[reference])
    others = [name for name in scores if name != reference]
    for name in others:
        odd = sorted(set(images) ^ set(scores[name]))
        if odd:
            raise DataError(
                f"{name} and {reference} were not scored on the same images: {len(odd)} are in one "
                f"only, e.g. {odd[0]!r}; run both on the same data"
            )
    columns = [[scores[name][image] for image in images] for name in (reference, *others)]
    table = np.asarray(columns, dtype=np.float64).T
    return table[:, 1:] - table[:, :1], others, images


def bootstrap_means(differences: Floats, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Return the means [resamples, m] of `differences` [n, m] over images drawn with replacement.

    All columns share the draws, so that methods are compared on the same resampled images.
    """
    n = len(differences)
    rng = np.random.default_rng(seed)
    centre = differences.mean(axis=0)
    rest = differences - centre  # a constant difference stays exactly constant
    parts = []
    step = max(1, _CHUNK // n)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, n, size=(rows, n)) + np.arange(rows)[:, None] * n
        counts = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        parts.append(counts.astype(np.float64) @ rest / n)
    return centre + np.concatenate(parts)


def compare(
    scores: Mapping[str, Mapping[str, float]],
    reference: str,
    *,
    higher: bool = True,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, Comparison]:
    """Compare every other method with `reference`; higher: whether a higher score is better."""
    differences, names, images = paired(scores, reference)
    if not names or not images:
        return {}
    means = bootstrap_means(differences, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    better = differences if higher else -differences
    won = (better > 0).mean(axis=0) + 0.5 * (better == 0).mean(axis=0)
    centre = differences.mean(axis=0)
    return {
        name: Comparison(len(images), *(float(x[i]) for x in (centre, low, high, won)))
        for i, name in enumerate(names)
    }


def image_means(columns: Sequence[tuple[Sequence[str], Sequence[float]]]) -> dict[str, float]:
    """Score by image name, averaged over seeds; each column is (names [n], scores [n])."""
    first: dict[str, list[float]] = {}
    for index, (names, values) in enumerate(columns):
        if len(names) != len(values) or len(set(names)) != len(names):
            raise DataError(
                f"per_image has {len(values)} scores for {len(names)} names, {len(set(names))} of "
                "them distinct; expected one score per image"
            )
        if index and set(names) != set(first):
            raise DataError("per_image of two seeds names different images; run both on the same")
        for name, value in zip(names, values):
            first.setdefault(name, []).append(float("nan") if value is None else float(value))
    return {name: float(np.mean(values)) for name, values in first.items()}
