"""Network input and mask resizing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from codtdq.data.transforms import resize_mask, to_input
from codtdq.errors import ConfigError, DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_same_size_is_exact_normalisation():
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    result = to_input(image, 16, MEAN, STD)
    assert result.shape == (3, 16, 16) and result.dtype == torch.float32
    assert result.is_contiguous()
    expected = (image.astype(np.float64) / 255 - MEAN) / STD
    np.testing.assert_allclose(result.permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_shrinking_averages_like_pil():
    """A checkerboard shrunk by two becomes gray, not one of its colours (antialiasing)."""
    board = (np.indices((32, 32)).sum(axis=0) % 2 * 255).astype(np.uint8)
    result = to_input(np.repeat(board[:, :, None], 3, axis=2), 16, (0, 0, 0), (1, 1, 1))
    assert (result - 0.5).abs().max() < 0.1


def test_growing_interpolates_between_pixels():
    image = np.zeros((1, 2, 3), np.uint8)
    image[0, 1] = 200
    row = to_input(image, 4, (0, 0, 0), (1, 1, 1))[0, 0] * 255
    assert row.tolist() == pytest.approx([0, 50, 150, 200], abs=1e-3)


def test_any_aspect_becomes_square():
    assert to_input(np.zeros((5, 40, 3), np.uint8), 32, MEAN, STD).shape == (3, 32, 32)


def test_channel_order_is_kept():
    image = np.zeros((4, 4, 3), np.uint8)
    image[:, :, 0] = 255
    assert to_input(image, 4, (0, 0, 0), (1, 1, 1)).mean(dim=(1, 2)).tolist() == [1.0, 0.0, 0.0]


def test_resize_mask_keeps_two_values():
    mask = np.zeros((31, 17), np.uint8)
    mask[10:20, 4:9] = 255
    result = resize_mask(mask, 64)
    assert result.shape == (64, 64) and set(np.unique(result)) == {0, 255}
    assert (result > 0).mean() == pytest.approx((mask > 0).mean(), abs=0.02)


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 4), "u1")],
)
def test_wrong_image_is_refused(image: np.ndarray):
    with pytest.raises(DataError, match=r"uint8 \[H, W, 3\] is needed"):
        to_input(image, 8, MEAN, STD)


def test_wrong_settings_are_refused():
    image = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ConfigError, match="std above 0"):
        to_input(image, 8, MEAN, (1, 1, 0))
    with pytest.raises(ConfigError, match="3 values each"):
        to_input(image, 8, (0.5,), STD)
    with pytest.raises(ConfigError, match="input size 0"):
        to_input(image, 0, MEAN, STD)
    with pytest.raises(DataError, match=r"uint8 \[H, W\] is needed"):
        resize_mask(image, 8)
