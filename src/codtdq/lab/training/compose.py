"""Camouflage compositions: a patch of a photo hidden in the same photo.

Background and object are two windows of one photo, so the object shares colours and texture with
its surroundings and is betrayed by the texture's discontinuity only.
"""

from __future__ import annotations

import math

import numpy as np

from codtdq.data.shapes import random_blob_mask
from codtdq.lab.training.augment import Affine, random_view, warp

_CANDIDATES = 6  # background windows that compete for being the most uniform
_PROBE = 12  # side of the thumbnail on which they are compared


def compose_camouflage(
    rng: np.random.Generator, photo: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hide a window of `photo` in another: (image [size, size, 3], mask [size, size]), uint8.

    An ease in [0, 1] is drawn first; a hard object is turned, scaled and tinted less.
    """
    height, width = photo.shape[:2]
    ease = rng.uniform(0.0, 1.0)
    back = warp(photo, _calm_view(rng, photo, size), size).astype(np.float32)
    scale = math.exp(-rng.uniform(0.0, 0.2 + 0.4 * ease))
    view = random_view(
        rng,
        width,
        height,
        size,
        sides=(0.4 * scale, 0.8 * scale),
        square=True,
        stretch=0.5 * ease,
        max_angle=180 if rng.random() < 0.3 + 0.5 * ease else 20,
        flip_vertical=True,
        transpose=rng.random() < ease,
    )
    front = warp(photo, view, size).astype(np.float32)
    alpha = random_blob_mask(rng, size, area=(0.02, 0.35), softness=rng.uniform(1.0, 2.5))
    front = _match_colours(rng, front, back, alpha > 0.5, ease)
    front = front * _shading(rng, size, 0.05 + 0.2 * ease)
    image = back + alpha[..., None] * (front - back)
    mask = np.where(alpha > 0.5, 255, 0).astype(np.uint8)
    return np.clip(image + 0.5, 0, 255).astype(np.uint8), mask


def _calm_view(rng: np.random.Generator, photo: np.ndarray, size: int) -> Affine:
    """Return the most uniform of some random windows.

    Photos show objects of their own; a calm window rarely holds a whole one, which the mask
    would wrongly call background.
    """
    height, width = photo.shape[:2]
    step = max(1, min(height, width) // (4 * _PROBE))
    probe_of = photo[::step, ::step]
    best, least = None, math.inf
    for _ in range(_CANDIDATES):
        view = random_view(
            rng, width, height, size, sides=(0.4, 0.85), square=True, stretch=0.2, max_angle=15
        )
        zoom = size / _PROBE / step
        a, b, c, d, e, f = view
        small = (a * zoom, b * zoom, c / step, d * zoom, e * zoom, f / step)
        spread = float(warp(probe_of, small, _PROBE).astype(np.float32).std((0, 1)).sum())
        if spread < least:
            best, least = view, spread
    assert best is not None
    return best


def _match_colours(
    rng: np.random.Generator, front: np.ndarray, back: np.ndarray, inside: np.ndarray, ease: float
) -> np.ndarray:
    """Move mean and spread of the object towards those of the background it covers."""
    if not inside.any():
        return front
    old, new = front[inside], back[inside]
    strength = 1.0 - rng.uniform(0.0, 0.6) * ease
    gain = np.clip((new.std(0) + 4.0) / (old.std(0) + 4.0), 0.5, 2.0) ** strength
    shift = strength * (new.mean(0) - old.mean(0)) + rng.normal(0.0, 3.0 + 7.0 * ease, 3)
    matched: np.ndarray = (front - old.mean(0)) * gain + old.mean(0) + shift
    return matched.astype(np.float32)


def _shading(rng: np.random.Generator, size: int, amount: float) -> np.ndarray:
    """Return a linear light gradient across the object, [size, size, 1] around 1."""
    axis = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    slope_x, slope_y = rng.uniform(-amount, amount, 2)
    light: np.ndarray = 1.0 + slope_x * axis[None, :] + slope_y * axis[:, None]
    return light[..., None]
