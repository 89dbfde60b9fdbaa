"""From decoded pixels to network input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from codtdq.errors import ConfigError, DataError


def to_input(
    image: NDArray[np.uint8], size: int, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """Resize, scale to [0, 1] and normalise: uint8 [H, W, 3] -> float32 [3, size, size].

    Resizes with PIL's bilinear filter on 8-bit pixels (it averages when shrinking), as the
    published COD networks were trained; then (pixel / 255 - mean) / std per channel.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise DataError(f"image is {image.dtype} {list(image.shape)}; uint8 [H, W, 3] is needed")
    _check_size(size)
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"mean {list(mean)} and std {list(std)}: 3 values each, std above 0")
    resized = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
    scaled = np.asarray(resized, dtype=np.float32) / np.float32(255.0)
    normal = (scaled - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))


def resize_mask(mask: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize a mask to [size, size] with the nearest pixel, so that 0 and 255 stay 0 and 255."""
    if mask.dtype != np.uint8 or mask.ndim != 2:
        raise DataError(f"mask is {mask.dtype} {list(mask.shape)}; uint8 [H, W] is needed")
    _check_size(size)
    resized = Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST)
    return np.array(resized, dtype=np.uint8)


def _check_size(size: int) -> None:
    if size < 1:
        raise ConfigError(f"input size {size}; 1 or more is needed")
