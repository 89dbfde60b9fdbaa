"""Pictures of a prediction that a person can judge at a glance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

TINT = np.array([255, 64, 32], dtype=np.float32)  # of the predicted object
TINT_WEIGHT = 0.35
INNER, OUTER = (255, 255, 255), (0, 0, 0)  # of the contour: one of the two shows on any animal
LINE_PART = 250  # the shorter side of an image has so many widths of a line


def overlay_of(image: NDArray[np.uint8], mask: NDArray[Any]) -> NDArray[np.uint8]:
    """The image with the object tinted, as strongly as the mask says, and its contour drawn.

    image: [H, W, 3]; mask: [H, W]. Returns uint8 [H, W, 3].
    """
    plain = np.asarray(mask)
    weight = plain[..., None].astype(np.float32) / 255 * TINT_WEIGHT
    mixed = image.astype(np.float32) * (1 - weight) + TINT * weight
    result: NDArray[np.uint8] = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    inside = plain >= 128
    width = max(1, min(inside.shape) // LINE_PART)
    cross = ndimage.generate_binary_structure(2, 2)
    grown = ndimage.binary_dilation(inside, cross, iterations=width)
    shrunk = ndimage.binary_erosion(inside, cross, iterations=width, border_value=1)
    result[grown & ~inside] = OUTER
    result[inside & ~shrunk] = INNER
    return result


def cutout_of(image: NDArray[np.uint8], mask: NDArray[Any]) -> NDArray[np.uint8]:
    """The image with the mask as its opacity: uint8 [H, W, 4]."""
    return np.dstack([image, np.asarray(mask)])
