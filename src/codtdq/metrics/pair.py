"""One validated pair of maps: the 8-bit prediction and its binary ground truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError

LEVELS = 256
MASK_THRESHOLD = 128  # a ground-truth pixel is foreground when it is brighter than this
EPS = float(np.spacing(1))  # 2^-52, the guard against division by zero in every measure


@dataclass(frozen=True, eq=False)
class Pair:
    """A prediction and a mask ready to be measured.

    pred: [H, W] uint8 as given. mask: [H, W] bool, contiguous, true on the foreground.
    lowest, highest: extreme grey levels of the prediction.
    values: [256] what each grey level becomes after the per-image min-max step. A map has at
    most 256 distinct values, so this table replaces a float copy of the whole map.
    """

    pred: NDArray[np.uint8]
    mask: NDArray[np.bool_]
    lowest: int
    highest: int
    values: NDArray[np.float64]


def foreground(mask: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which pixels of a grey mask are object: those above 128, whatever its shape.

    The one place that says so; a pixel of exactly 128 is background.
    """
    found: NDArray[np.bool_] = mask > MASK_THRESHOLD
    return found


def prepare(pred: NDArray[np.uint8], gt: NDArray[np.uint8]) -> Pair:
    """Check both maps and apply the protocol: mask = gt > 128, prediction min-max scaled."""
    _check_map(pred, "prediction")
    _check_map(gt, "ground truth")
    if pred.shape != gt.shape:
        raise DataError(
            f"prediction is {_size(pred)} but ground truth is {_size(gt)} (height x width): "
            "both must have the same size; resize the prediction to the ground truth first"
        )
    lowest, highest = int(pred.min()), int(pred.max())
    mask = np.ascontiguousarray(foreground(gt))
    return Pair(pred, mask, lowest, highest, _level_values(lowest, highest))


def float_map(pair: Pair) -> NDArray[np.float64]:
    """Return the scaled prediction [H, W] in floating point.

    Only for the rare decisions where the last bit of a floating-point sum counts; it keeps the
    memory layout of the input because the layout sets the order of summation.
    """
    scaled = pair.pred / 255
    if pair.highest == pair.lowest:
        return scaled
    low, high = pair.lowest / 255, pair.highest / 255
    return (scaled - low) / (high - low)


def _level_values(lowest: int, highest: int) -> NDArray[np.float64]:
    """Return the scaled value of each grey level; a constant map is not stretched."""
    values = np.arange(LEVELS) / 255
    if highest == lowest:
        return values
    return (values - values[lowest]) / (values[highest] - values[lowest])


def _check_map(array: object, role: str) -> None:
    """Raise DataError unless the array is a non-empty 2-D uint8 map."""
    if not isinstance(array, np.ndarray):
        raise DataError(
            f"{role} is a {type(array).__name__}: expected a 2-D numpy uint8 array, convert it"
        )
    if array.dtype != np.uint8:
        remedy = "scale to 0..255, round and convert with astype(np.uint8)"
        if array.dtype.kind == "f" and np.isnan(array).any():
            remedy = f"it also holds {int(np.isnan(array).sum())} NaN values, fix the model output"
        raise DataError(
            f"{role} has dtype {array.dtype}: only uint8 (0..255) is accepted; {remedy}"
        )
    if array.ndim != 2 or array.size == 0:
        raise DataError(
            f"{role} has shape {array.shape}: expected a non-empty grey map [H, W]; "
            "drop the colour or batch axis"
        )


def _size(array: NDArray[np.uint8]) -> str:
    return "x".join(str(side) for side in array.shape)
