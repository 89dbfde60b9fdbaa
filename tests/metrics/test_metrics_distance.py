"""The clamped distance and the nearest object pixel equal scipy's transform."""

import itertools

import numpy as np
import pytest
from scipy import ndimage

from codtdq.metrics.distance import BAND, MAX_REACH, squared_distance
from codtdq.metrics.missed import MARGIN, WINDOW_NORM, _copy_nearest


def expected_distance(mask, reach):
    exact = np.rint(ndimage.distance_transform_edt(~mask) ** 2)
    return np.minimum(exact, reach * reach)


@pytest.mark.parametrize("reach", [1, 2, 5, 64, 108, MAX_REACH])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.02, 0.5, 1.0])
def test_squared_distance_equals_scipy(reach, density):
    rng = np.random.default_rng([reach, int(1000 * density)])
    for shape in ((1, 1), (1, 300), (300, 1), (17, 23), (150, 2 * BAND + 7)):
        mask = rng.random(shape) < density
        mask[rng.integers(shape[0]), rng.integers(shape[1])] = True
        np.testing.assert_array_equal(squared_distance(mask, reach), expected_distance(mask, reach))


@pytest.mark.parametrize("seed", range(4))
def test_squared_distance_equals_scipy_on_shapes_with_holes(seed):
    rng = np.random.default_rng(seed)
    field = ndimage.gaussian_filter(rng.standard_normal((200, 260)), 9)
    mask = field > field.std()
    np.testing.assert_array_equal(squared_distance(mask, 108), expected_distance(mask, 108))


def check_nearest(mask, values):
    padded = np.pad(mask, MARGIN)
    distances = np.pad(squared_distance(mask, 108), MARGIN)
    spread = np.pad(np.where(mask, values, 0).astype(np.uint8), MARGIN)
    _copy_nearest(spread, padded, distances)
    rows, columns = ndimage.distance_transform_edt(
        ~mask, return_distances=False, return_indices=True
    )
    found = spread[MARGIN:-MARGIN, MARGIN:-MARGIN]
    near = distances[MARGIN:-MARGIN, MARGIN:-MARGIN] <= WINDOW_NORM
    np.testing.assert_array_equal(found[near], values[rows, columns][near])


def test_nearest_pixel_breaks_ties_like_scipy_on_all_masks_of_three_by_three():
    values = np.arange(1, 10, dtype=np.uint8).reshape(3, 3)
    for bits in itertools.product((False, True), repeat=9):
        if any(bits):
            check_nearest(np.array(bits).reshape(3, 3), values)


@pytest.mark.parametrize("density", [0.02, 0.08, 0.3])
def test_nearest_pixel_breaks_ties_like_scipy_on_random_masks(density):
    rng = np.random.default_rng(1)
    for _ in range(30):
        mask = rng.random((14, 17)) < density
        mask[rng.integers(14), rng.integers(17)] = True
        check_nearest(mask, rng.permutation(14 * 17).astype(np.uint8).reshape(14, 17))
