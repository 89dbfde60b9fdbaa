"""Bands, occupancies and labels that can be counted by hand."""

import numpy as np
import pytest
import torch

from codtdq.errors import ConfigError
from codtdq.lab.diagnosis.boundary import (
    BoundaryProtocol,
    boundary_band,
    box_means,
    label,
    pixel_edges,
)


def square(size=20, low=6, high=14):
    mask = np.zeros((size, size), np.uint8)
    mask[low:high, low:high] = 255
    return mask


def test_band_of_a_square():
    band = boundary_band(square(), r_in=1, r_out=2)
    inner = np.zeros((20, 20), bool)
    inner[7:13, 7:13] = True  # eroded by one pixel
    assert not band[inner].any()
    assert band[6, 6:14].all() and band[4, 10] and band[5, 5]  # sqrt(2) from the corner
    assert not band[3, 10] and not band[4, 4]  # 3 and sqrt(8) away
    # ring of the square, two rows on each side, and the corner discs of radius 2 without axes
    assert band.sum() == (64 - 36) + 4 * 2 * 8 + 4 * 1


def test_only_outside_or_only_inside():
    mask = square()
    outside = boundary_band(mask, r_in=0, r_out=1)
    assert not outside[mask > 0].any() and outside.sum() == 32
    inside = boundary_band(mask, r_in=1, r_out=0)
    assert inside[mask > 0].sum() == 28 and inside.sum() == 28


def test_frame_and_empty_masks_make_no_boundary():
    cut = np.zeros((10, 10), np.uint8)
    cut[:, :5] = 255
    band = boundary_band(cut, 1, 1)
    assert band[:, 4:6].all() and band.sum() == 20  # nothing along the frame
    for mask in (np.zeros((6, 6), np.uint8), np.full((6, 6), 255, np.uint8)):
        assert not boundary_band(mask, 3, 3).any()


def test_occupancy_counts_parts_of_pixels():
    band = np.zeros((4, 4), bool)
    band[0, 0] = True
    boxes = torch.tensor(
        [[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0.5, 0.5, 1, 1], [0.125, 0, 0.375, 0.25]]
    )
    means = box_means(band, pixel_edges(boxes, 4, 4))
    # the last box is half a pixel of the band and half a pixel below it
    assert means.tolist() == pytest.approx([0.25, 1 / 16, 0.0, 0.5])


def test_labels_take_the_thresholds_in():
    protocol = BoundaryProtocol(gamma_boundary=0.5, gamma_nonboundary=0.1)
    occupancy = torch.tensor([0.0, 0.1, 0.11, 0.49, 0.5, 1.0, float("nan")])
    assert label(occupancy, protocol).tolist() == [0, 0, -1, -1, 1, 1, -1]


@pytest.mark.parametrize(
    "wrong",
    [{"r_in": -1}, {"r_in": 0, "r_out": 0}, {"gamma_boundary": 0.01}, {"gamma_boundary": 2}],
)
def test_senseless_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match="accepted"):
        BoundaryProtocol(**wrong)
