"""Calibration batches for a model that declares its input: images only, never their masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from codtdq.data.dataset import Dataset
from codtdq.data.datasets import open_images
from codtdq.data.images import ImageList
from codtdq.data.transforms import to_input
from codtdq.evaluation.predict import info_of

CALIBRATION_IMAGES = 128  # the paper's calibration subset


class CalibrationImages:
    """Batches [B, 3, size, size] of the first images of a data set, loaded when they are needed."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        count: int = CALIBRATION_IMAGES,
        batch_size: int = 1,
    ) -> None:
        self._info, self._dataset, self._batch = info_of(model), dataset, batch_size
        self._count = min(count, len(dataset))

    @property
    def images(self) -> int:
        """How many images there are."""
        return self._count

    def __len__(self) -> int:
        return -(-self._count // self._batch)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self._count, self._batch):
            indices = range(start, min(start + self._batch, self._count))
            yield torch.stack([self._input(index) for index in indices])

    def _input(self, index: int) -> Tensor:
        info = self._info
        return to_input(self._dataset[index].image, info.input_size, info.mean, info.std)


def calibration_batches(model: nn.Module, calibration: Any) -> Any:
    """Batches of whatever a user calibrates with.

    calibration: the name of a data set, a folder, a file or a glob pattern; a data set; or a list
        of files, PIL images or arrays. Anything else is taken for batches, and returned.
    """
    if isinstance(calibration, str | Path):
        images = open_images(str(calibration), limit=CALIBRATION_IMAGES)
        return CalibrationImages(model, images)
    if isinstance(calibration, Dataset):
        return CalibrationImages(model, calibration)
    pictures = (str, Path, Image, np.ndarray)
    if isinstance(calibration, list | tuple) and calibration:
        if all(isinstance(item, pictures) for item in calibration):
            return CalibrationImages(model, ImageList(calibration))
    return calibration
