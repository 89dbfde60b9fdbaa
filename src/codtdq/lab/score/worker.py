"""The work of one process: read a mask and its maps, measure each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from codtdq.errors import DataError
from codtdq.imagefile import read_map, read_mask
from codtdq.lab.score.pairing import Task
from codtdq.metrics.measure import SCORE_NAMES, measure


@dataclass(frozen=True, eq=False)
class Measured:
    """One map: its scores in the order of SCORE_NAMES, and the counts behind its curves."""

    scores: tuple[float, ...]
    hits: NDArray[np.int32]  # [256] pixels that reach the thresholds 255, 254, ..., 0
    alarms: NDArray[np.int32]
    area: int
    pixels: int


def measure_tasks(tasks: Sequence[Task], resize: bool) -> list[dict[str, Measured]]:
    """Score every map of some tasks; by method, in the order of the tasks."""
    return [_measure_task(task, resize) for task in tasks]


def _measure_task(task: Task, resize: bool) -> dict[str, Measured]:
    mask = read_mask(task.mask)
    found = {}
    for method, path in task.maps.items():
        values = read_map(path)
        if resize and values.shape != mask.shape:
            height, width = mask.shape
            scaled = Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR)
            values = np.asarray(scaled, dtype=np.uint8)
        try:
            scores = measure(values, mask)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        by_name, counts = scores.as_dict(), scores.thresholds
        found[method] = Measured(
            tuple(by_name[key] for key in SCORE_NAMES),
            counts.hits.astype(np.int32),
            counts.alarms.astype(np.int32),
            counts.area,
            counts.pixels,
        )
    return found
