from __future__ import annotations

import numpy as np
import pytest

from codtdq.lab.training.augment import degrade, jitter_colours, random_view, warp

WIDTH, HEIGHT = 70, 50


def corners(view: tuple[float, ...], out: int) -> np.ndarray:
    a, b, c, d, e, f = view
    points = [(0, 0), (out, 0), (0, out), (out, out)]
    return np.array([(a * x + b * y + c, d * x + e * y + f) for x, y in points])


@pytest.mark.parametrize("seed", range(30))
def test_views_stay_inside_the_source(seed: int) -> None:
    rng = np.random.default_rng(seed)
    view = random_view(
        rng,
        WIDTH,
        HEIGHT,
        32,
        sides=(0.3, 1.0),
        stretch=0.6,
        max_angle=180,
        square=seed % 2 == 0,
        flip_vertical=True,
        transpose=True,
    )
    points = corners(view, 32)
    assert points.min() >= -1e-6
    assert points[:, 0].max() <= WIDTH + 1e-6
    assert points[:, 1].max() <= HEIGHT + 1e-6


def test_whole_view_is_the_identity_up_to_a_flip() -> None:
    image = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    seen = set()
    for seed in range(8):
        view = random_view(np.random.default_rng(seed), 32, 32, 32, sides=(1.0, 1.0))
        result = warp(image, view, 32)
        flipped = bool(np.array_equal(result, image[:, ::-1]))
        assert flipped or np.array_equal(result, image)
        seen.add(flipped)
    assert seen == {True, False}


def test_transposed_view_swaps_the_axes() -> None:
    image = np.random.default_rng(0).integers(0, 255, (16, 16), dtype=np.uint8)
    versions = []
    for quarter in range(4):
        versions += [np.rot90(image, quarter), np.rot90(image.T, quarter)]
    seen = set()
    for seed in range(40):
        view = random_view(
            np.random.default_rng(seed),
            16,
            16,
            16,
            sides=(1.0, 1.0),
            flip_vertical=True,
            transpose=True,
        )
        result = warp(image, view, 16)
        seen |= {i for i, version in enumerate(versions) if np.array_equal(result, version)}
    assert seen == set(range(8))


def test_jitter_is_seeded_and_zero_strength_is_identity() -> None:
    image = np.random.default_rng(1).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    first, again = (jitter_colours(np.random.default_rng(3), image, 1.0) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first.astype(int) - image).mean() > 1
    same = jitter_colours(np.random.default_rng(3), image, 0.0)
    assert np.abs(same.astype(int) - image).max() <= 1


def test_degrade_keeps_shape_and_sometimes_the_image() -> None:
    image = np.random.default_rng(1).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    results = [degrade(np.random.default_rng(seed), image) for seed in range(30)]
    assert all(result.shape == image.shape and result.dtype == np.uint8 for result in results)
    untouched = sum(np.array_equal(result, image) for result in results)
    assert 0 < untouched < 30
