"""The building blocks of camosynth on their own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from codtdq.data.shapes import random_blob_mask
from codtdq.data.textures import (
    POINT_FUNCTIONS,
    TextureParams,
    random_texture,
    random_texture_params,
    smooth_field,
)


def stream(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def params(**changes: object) -> TextureParams:
    palette = np.repeat(np.linspace(0.1, 0.9, 4, dtype=np.float32)[:, None], 3, axis=1)
    base = {
        "slope": 1.0,
        "orientation": 0.0,
        "anisotropy": 0.0,
        "band": 12.0,
        "band_width": 0.2,
        "band_share": 0.5,
        "point": "linear",
        "gain": 1.0,
        "palette": palette,
    }
    return TextureParams(**{**base, **changes})


@pytest.mark.parametrize("size", [33, 64, 97])
def test_blob_is_soft_mask_with_given_area(size: int):
    mask = random_blob_mask(stream(size), size, area=(0.1, 0.1))
    assert mask.shape == (size, size) and mask.dtype == np.float32
    assert mask.min() == 0.0 and mask.max() == 1.0
    assert 0.05 < (mask > 0.5).mean() < 0.13


def test_blob_area_is_exact_when_it_fits():
    shares = [(random_blob_mask(stream(s), 128, area=(0.04, 0.04)) > 0.5).mean() for s in range(60)]
    assert np.median(shares) == pytest.approx(0.04, rel=0.04)


def test_blob_softness_widens_the_edge():
    def edge(softness: float) -> int:
        mask = random_blob_mask(stream(4), 128, softness=softness)
        return int(((mask > 0.02) & (mask < 0.98)).sum())

    assert edge(6.0) > 3 * edge(1.5)


def test_blobs_are_mostly_one_piece_and_varied():
    pieces, fill = [], []
    for seed in range(80):
        inside = random_blob_mask(stream(seed), 96, area=(0.1, 0.2)) > 0.5
        pieces.append(ndimage.label(inside)[1])
        rows, columns = np.nonzero(inside)
        fill.append(inside.sum() / (np.ptp(rows) + 1) / (np.ptp(columns) + 1))
    assert np.mean(np.array(pieces) == 1) > 0.9
    assert np.min(fill) < 0.4 and np.max(fill) > 0.65, "slim or limbed ones and compact ones"


def test_blob_draw_is_reproducible():
    assert np.array_equal(random_blob_mask(stream(9), 64), random_blob_mask(stream(9), 64))


@pytest.mark.parametrize("point", POINT_FUNCTIONS)
def test_texture_has_type_and_range(point: str):
    texture = random_texture(stream(2), 65, params(point=point))
    assert texture.shape == (65, 65, 3) and texture.dtype == np.float32
    assert texture.min() >= 0.05 and texture.max() <= 0.95 and texture.std() > 0.02


def test_texture_varies_along_its_orientation():
    texture = random_texture(stream(1), 96, params(anisotropy=4.0, orientation=0.0))[:, :, 0]
    across, down = np.abs(np.diff(texture, axis=1)).mean(), np.abs(np.diff(texture, axis=0)).mean()
    assert across > 3 * down
    turned = random_texture(stream(1), 96, params(anisotropy=4.0, orientation=np.pi / 2))[:, :, 0]
    assert np.abs(np.diff(turned, axis=0)).mean() > 3 * np.abs(np.diff(turned, axis=1)).mean()


def test_texture_band_is_its_main_frequency():
    for band in (8.0, 20.0):
        field = random_texture(stream(1), 96, params(band=band, band_share=1.0))[:, :, 0]
        power = np.abs(np.fft.fft2(field - field.mean())) ** 2
        frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(96) * 96, np.fft.fftfreq(96) * 96))
        assert (power * frequency).sum() / power.sum() == pytest.approx(band, rel=0.15)


def test_steeper_slope_and_gain_show():
    def roughness(**changes: float) -> float:
        texture = random_texture(stream(1), 96, params(band_share=0.0, **changes))
        return float(np.abs(np.diff(texture, axis=0)).mean())

    assert roughness(slope=0.6) > 1.5 * roughness(slope=1.8)
    assert roughness(gain=1.6) > 1.2 * roughness(gain=0.6)


def test_random_params_stay_in_range():
    for seed in range(50):
        drawn = random_texture_params(stream(seed), band=(10.0, 12.0))
        assert 10.0 <= drawn.band <= 12.0 and drawn.point in POINT_FUNCTIONS
        assert drawn.palette.shape == (4, 3)
        assert drawn.palette.min() >= 0.0 and drawn.palette.max() <= 1.0


def test_smooth_field_is_smooth_normalised_and_alike_at_every_size():
    small, large = smooth_field(stream(3), 48, cycles=2.0), smooth_field(stream(3), 96, cycles=2.0)
    assert abs(large.mean()) < 1e-5 and large.std() == pytest.approx(1.0, abs=1e-4)
    assert np.abs(np.diff(large, axis=0)).max() < 0.6
    assert np.abs(large[::2, ::2] - small).max() < 1e-3
