"""Seeded augmentations of uint8 image and mask pairs; every draw comes from a passed generator."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageFilter

Affine = tuple[float, float, float, float, float, float]

_LUMA = np.array([0.2989, 0.587, 0.114], dtype=np.float32)


def random_view(
    rng: np.random.Generator,
    width: int,
    height: int,
    out: int,
    *,
    sides: tuple[float, float],
    stretch: float = 0.0,
    max_angle: float = 0.0,
    square: bool = False,
    flip_vertical: bool = False,
    transpose: bool = False,
) -> Affine:
    """Draw an affine map from an out x out image to a window that lies inside the source.

    sides: range of the window's side as a part of the source's (of the shorter one if `square`).
    stretch: largest log aspect change; max_angle: degrees. A horizontal flip is always possible.
    """
    side = rng.uniform(*sides)
    aspect = math.exp(rng.uniform(-stretch, stretch) / 2)
    base_x, base_y = (min(width, height),) * 2 if square else (width, height)
    half_x, half_y = side * aspect * base_x / 2, side / aspect * base_y / 2
    angle = math.radians(rng.uniform(-max_angle, max_angle))
    cos, sin = math.cos(angle), math.sin(angle)
    reach_x = abs(cos) * half_x + abs(sin) * half_y
    reach_y = abs(sin) * half_x + abs(cos) * half_y
    # shrink until the rotated window fits, so that no invented border is ever seen
    shrink = min(1.0, width / 2 / reach_x, height / 2 / reach_y)
    half_x, half_y, reach_x, reach_y = (v * shrink for v in (half_x, half_y, reach_x, reach_y))
    center_x = rng.uniform(reach_x, max(reach_x, width - reach_x))
    center_y = rng.uniform(reach_y, max(reach_y, height - reach_y))
    flip_x = -1.0 if rng.random() < 0.5 else 1.0
    flip_y = -1.0 if flip_vertical and rng.random() < 0.5 else 1.0
    swap = transpose and rng.random() < 0.5
    return _window_map(
        out, (center_x, center_y), (half_x * flip_x, half_y * flip_y), (cos, sin), swap
    )


def _window_map(
    out: int,
    center: tuple[float, float],
    half: tuple[float, float],
    turn: tuple[float, float],
    swap: bool,
) -> Affine:
    step_x, step_y = 2 * half[0] / out, 2 * half[1] / out
    cos, sin = turn
    # columns: where one output pixel to the right (x) and down (y) lands in the source
    ax, ay = cos * step_x, sin * step_x
    bx, by = -sin * step_y, cos * step_y
    if swap:
        ax, ay, bx, by = bx, by, ax, ay
    mid = out / 2
    return (ax, bx, center[0] - mid * (ax + bx), ay, by, center[1] - mid * (ay + by))


def warp(image: np.ndarray, view: Affine, out: int) -> np.ndarray:
    """Sample an [H, W(, 3)] uint8 array through `view` into [out, out(, 3)], bilinearly."""
    warped = Image.fromarray(image).transform(
        (out, out), Image.Transform.AFFINE, view, resample=Image.Resampling.BILINEAR
    )
    return np.asarray(warped)


def jitter_colours(rng: np.random.Generator, image: np.ndarray, strength: float) -> np.ndarray:
    """Change brightness, contrast, saturation and channel gains; strength 0 changes nothing."""
    contrast = math.exp(rng.uniform(-0.6, 0.6) * strength)
    saturation = max(0.0, 1.0 + rng.uniform(-1.0, 0.8) * strength)
    gains = np.exp(rng.uniform(-0.2, 0.2, 3) * strength).astype(np.float32)
    shift = rng.uniform(-40, 40) * strength
    grey = np.tile(_LUMA, (3, 1))
    mix = saturation * np.eye(3, dtype=np.float32) + (1.0 - saturation) * grey
    matrix = (contrast * gains[:, None] * mix).astype(np.float32)
    pixels = image.reshape(-1, 3).astype(np.float32)
    mean = pixels.mean(0)
    mixed = (pixels - mean) @ matrix.T + mean + np.float32(shift)
    result: np.ndarray = np.clip(mixed + 0.5, 0, 255).astype(np.uint8)
    return result.reshape(image.shape)


def degrade(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Sometimes blur, sharpen or add noise, as cameras and JPEG do."""
    choice = rng.random()
    if choice < 0.12:
        blur = ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0))
        return np.asarray(Image.fromarray(image).filter(blur))
    if choice < 0.24:
        sharpen = ImageFilter.UnsharpMask(1.5, int(rng.integers(40, 150)), 0)
        return np.asarray(Image.fromarray(image).filter(sharpen))
    if choice < 0.36:
        noise = rng.normal(0.0, rng.uniform(2.0, 8.0), image.shape).astype(np.float32)
        return np.clip(image + noise + 0.5, 0, 255).astype(np.uint8)
    return image
