"""Write small image files for the data tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

MakeFolder = Callable[..., Path]


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (12, 9)) -> None:
    """Write a random RGB image of (width, height)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_mask(path: Path, size: tuple[int, int] = (12, 9), high: int = 255) -> None:
    """Write a gray mask whose left third is the object."""
    pixels = np.zeros((size[1], size[0]), dtype=np.uint8)
    pixels[:, : size[0] // 3] = high
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
