"""Resizing images and masks for training, as uint8 arrays."""

from __future__ import annotations

import numpy as np
from PIL import Image

from codtdq.data.sample import Sample


def squash(image: np.ndarray, side: int) -> np.ndarray:
    """Resize [H, W(, 3)] to [side, side(, 3)], aspect not kept, as COD networks are fed."""
    if image.shape[:2] == (side, side):
        return image
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def squash_sample(sample: Sample, side: int) -> Sample:
    """Return the same sample with image and mask at side x side."""
    assert sample.mask is not None
    return Sample(sample.name, squash(sample.image, side), squash(sample.mask, side))


def shrink(image: np.ndarray, short_side: int) -> np.ndarray:
    """Resize so that the shorter side is at most `short_side`, aspect kept."""
    height, width = image.shape[:2]
    factor = short_side / min(height, width)
    if factor >= 1.0:
        return image
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
