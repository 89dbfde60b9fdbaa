"""The passes over pixels in the native library, which has each of them; numpy serves without it.

The functions here take what their namesakes in numpy take and return the same: counts and distances
to the bit, sums of floats up to their order (tests compare both).
"""

from __future__ import annotations

import os
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import UnsupportedError
from codtdq.native import SWITCH, open_library

QUARTERS, SIDES, LEVELS = 4, 2, 256


class Map(Structure):
    """cod_map of codtdq_scores.h."""

    _fields_ = [
        ("data", c_void_p),
        *[(name, c_int64) for name in ("height", "width", "stride", "count")],
    ]


@cache
def library() -> Any | None:
    """The native library with the argument types of its scores, or None where there is none."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        found = open_library()
        _declare(found)
    except (UnsupportedError, AttributeError):  # not built, or built before it had scores
        return None
    return found


def takes(pixels: NDArray[Any]) -> bool:
    """Whether there is a library, and rows of bytes [H, W] lie in memory as it wants them."""
    height, width = pixels.shape
    stride, step = pixels.strides
    ordered = (step == 1 or width == 1) and (stride >= width or height == 1)
    return ordered and library() is not None


def profiles(mask: NDArray[np.bool_]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return how many pixels of each row and of each column are true."""
    rows, columns = (np.empty(side, np.uint32) for side in mask.shape)
    code = _native().cod_score_profiles(
        byref(_map(mask)), rows.ctypes.data, rows.size, columns.ctypes.data, columns.size
    )
    _check(code)
    return rows, columns


def quarter_histograms(
    pred: NDArray[np.uint8], mask: NDArray[np.bool_], split: tuple[int, int]
) -> NDArray[np.int64]:
    """Return [4, 2, 256] pixels by quarter around the split point, by mask and by grey level."""
    quarters = np.empty((QUARTERS, SIDES, LEVELS), np.int64)
    code = _native().cod_score_histogram(
        byref(_map(pred)), byref(_map(mask)), *split, quarters.ctypes.data, quarters.size
    )
    _check(code)
    return quarters


def squared_distance(mask: NDArray[np.bool_], reach: int) -> NDArray[np.int16]:
    """Return min(squared distance to the nearest true pixel, reach^2) of each pixel."""
    squared = np.empty(mask.shape, np.int16)
    _check(
        _native().cod_score_distance(byref(_map(mask)), reach, squared.ctypes.data, squared.size)
    )
    return squared


def discounted(
    pred: NDArray[np.uint8],
    mask: NDArray[np.bool_],
    squared: NDArray[np.int16],
    low: int,
    discount: NDArray[np.float64],
) -> float:
    """Return the sum over the background of (pred - low) * discount[squared distance]."""
    total = c_double()
    code = _native().cod_score_discounted(
        byref(_map(pred)),
        byref(_map(mask)),
        *(squared.ctypes.data, squared.size, low),
        *(discount.ctypes.data, discount.size, byref(total)),
    )
    _check(code)
    return total.value


def missed_error(
    deficit: NDArray[np.uint8],
    squared: NDArray[np.int16],
    box: tuple[int, int, int, int],
    weights: NDArray[np.float64],
) -> float:
    """Return the sum over the object of min(error, weighted mean of the errors around it)."""
    total = c_double()
    code = _native().cod_score_missed(
        byref(_map(deficit)),
        *(box[0], box[2], squared.ctypes.data, *squared.shape, squared.size),
        *(weights.ctypes.data, weights.size, byref(total)),
    )
    _check(code)
    return total.value


def _map(pixels: NDArray[Any]) -> Map:
    """Describe bytes [H, W] of which `takes` is true; the caller keeps them."""
    assert pixels.itemsize == 1
    height, width = pixels.shape
    stride = max(pixels.strides[0], width)  # of a single row it says nothing
    return Map(pixels.ctypes.data, height, width, stride, (height - 1) * stride + width)


def _native() -> Any:
    found = library()
    assert found is not None, "callers ask for it first"
    return found


def _check(code: int) -> None:
    if code == 2:
        raise MemoryError("the native library found no memory for the distances of a map")
    assert code == 0, "the native library does not take this map"


def _declare(found: Any) -> None:
    maps, sizes, pointer = POINTER(Map), c_int64, c_void_p
    found.cod_score_profiles.argtypes = [maps, pointer, sizes, pointer, sizes]
    found.cod_score_histogram.argtypes = [maps, maps, sizes, sizes, pointer, sizes]
    found.cod_score_distance.argtypes = [maps, c_int32, pointer, sizes]
    found.cod_score_discounted.argtypes = [
        *(maps, maps, pointer, sizes, c_int32, pointer, sizes, POINTER(c_double))
    ]
    found.cod_score_missed.argtypes = [
        *(maps, sizes, sizes, pointer, sizes, sizes, sizes, pointer, sizes, POINTER(c_double))
    ]
