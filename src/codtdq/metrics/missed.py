"""Missed error of the object: each pixel's error or the mean around it, whichever is less."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from codtdq.metrics import compiled

RADIUS = 3  # of the 7 x 7 Gaussian window
SIGMA = 5.0
WINDOW_NORM = 2 * RADIUS * RADIUS  # largest squared distance inside the Gaussian window
MARGIN = RADIUS + math.isqrt(WINDOW_NORM)  # any neighbour of a window pixel stays in the array
BLOCK = 32  # rows filtered together, so that the temporaries stay in cache

# Centre and one side of the symmetric 1-D Gaussian; its outer product is the 7 x 7 kernel.
_SIDE = [math.exp(-(k**2) / (2 * SIGMA**2)) for k in range(RADIUS + 1)]
_WEIGHTS = np.array([weight / (2 * sum(_SIDE) - _SIDE[0]) for weight in _SIDE])
_WEIGHTS.setflags(write=False)


def missed_error(
    deficit: NDArray[np.uint8], squared: NDArray[np.int16], box: tuple[int, int, int, int]
) -> float:
    """Return the sum over the object of min(error, Gaussian mean of the errors around it).

    deficit: [h, w] error in grey levels on the object, zero elsewhere, over `box` only.
    squared: [H, W] squared distance to the object. box: (top, bottom, left, right) in it.
    The mean sees each background pixel with the error of its nearest object pixel.
    """
    if compiled.takes(deficit):
        return compiled.missed_error(deficit, squared, box, _WEIGHTS)
    return _in_numpy(deficit, squared, box)


def _in_numpy(
    deficit: NDArray[np.uint8], squared: NDArray[np.int16], box: tuple[int, int, int, int]
) -> float:
    """Do what `missed_error` says in numpy."""
    errors = np.pad(deficit, MARGIN)
    # Pixels off the image keep distance zero and error zero: the filter pads with zeros.
    distances = np.zeros(errors.shape, np.int16)
    reach = [
        slice(max(start - RADIUS, 0), min(stop + RADIUS, side))
        for start, stop, side in zip(box[::2], box[1::2], squared.shape)
    ]
    target = [
        slice(part.start - start + MARGIN, part.stop - start + MARGIN)
        for part, start in zip(reach, box[::2])
    ]
    distances[tuple(target)] = squared[tuple(reach)]
    inside = np.pad(squared[slice(*box[:2]), slice(*box[2:])] == 0, MARGIN)
    spread = errors.copy()
    _copy_nearest(spread, inside, distances)

    total = 0.0
    for start in range(MARGIN, errors.shape[0] - MARGIN, BLOCK):
        stop = min(start + BLOCK, errors.shape[0] - MARGIN)
        mean = _gaussian(spread[start - RADIUS : stop + RADIUS].astype(np.float64))
        # Off the object the error is zero and so is the minimum.
        np.minimum(mean, errors[start:stop], out=mean)
        total += float(mean[:, MARGIN:-MARGIN].sum())
    return total


def _copy_nearest(
    spread: NDArray[np.uint8], inside: NDArray[np.bool_], distances: NDArray[np.int16]
) -> None:
    """Give each pixel near the object the value of its nearest object pixel, in place.

    Among equally near object pixels the leftmost counts, then the topmost.
    inside: [H, W] true on the object. distances: [H, W] squared distance to the object; zero on
    the object and on pixels to skip.
    """
    width = spread.shape[1]
    values, norms, on_object = spread.reshape(-1), distances.reshape(-1), inside.reshape(-1)
    band = np.flatnonzero((norms > 0) & (norms <= WINDOW_NORM))
    band_norms = norms[band]
    for norm in np.unique(band_norms).tolist():
        pixels = band[band_norms == norm]
        nearest = pixels.copy()
        for row, column in _offsets(norm):
            source = pixels + (row * width + column)
            # The preferred offset comes last and overrides the others.
            np.copyto(nearest, source, where=on_object[source])
        values[pixels] = values[nearest]


def _offsets(norm: int) -> list[tuple[int, int]]:
    """Return all (row, column) offsets of a squared length, rightmost and lowest first."""
    side = range(-math.isqrt(norm), math.isqrt(norm) + 1)
    found = [(row, column) for row in side for column in side if row**2 + column**2 == norm]
    return sorted(found, key=lambda offset: (offset[1], offset[0]), reverse=True)


def _gaussian(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 7 x 7 Gaussian mean of contiguous rows, [h, W] -> [h - 6, W].

    The three outermost columns at each side hold no valid mean: on flat memory, which is
    fastest, the window runs over the row ends.
    """
    width = values.shape[1]
    down = _convolve(values.reshape(-1), width)
    mean = np.zeros(down.size)
    mean[RADIUS:-RADIUS] = _convolve(down, 1)
    return mean.reshape(-1, width)


def _convolve(values: NDArray[np.float64], stride: int) -> NDArray[np.float64]:
    """Filter [N] with the 7 Gaussian weights at a stride, -> [N - 6 * stride]."""
    size = values.size - 2 * RADIUS * stride
    middle = RADIUS * stride
    result = values[middle : middle + size] * _WEIGHTS[0]
    both = np.empty_like(result)
    for k in range(1, RADIUS + 1):
        before, after = middle - k * stride, middle + k * stride
        np.add(values[before : before + size], values[after : after + size], out=both)
        np.multiply(both, _WEIGHTS[k], out=both)
        np.add(result, both, out=result)
    return result
