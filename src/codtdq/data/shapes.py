"""Random object outlines: warped bodies with limbs and bites, as soft masks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

_CANVAS = 96  # outlines are smooth, so they are drawn once at this resolution and then resampled
_REACH = 3.0  # the drawing canvas spans [-_REACH, _REACH] in both directions; a body is about 1


def random_blob_mask(
    rng: np.random.Generator,
    size: int,
    *,
    area: tuple[float, float] = (0.05, 0.25),
    softness: float = 1.5,
) -> FloatArray:
    """Draw one random smooth object as a soft mask in [0, 1]: float32 [H, W], H = W = size.

    area: range of the object's share of the image, drawn log-uniformly. A long object that
        does not fit is shrunk, and some objects are cut by the image border, so the share may be
        smaller than drawn.
    softness: width of the edge ramp in pixels.
    """
    distance = _draw_outline(rng)
    rows, columns = _extent(distance <= 0)
    cell = 2.0 * _REACH / _CANVAS
    drawn_area = float((distance <= 0).sum()) * cell**2
    share = float(np.exp(rng.uniform(np.log(area[0]), np.log(area[1]))))
    scale = size * np.sqrt(share / drawn_area)  # pixels per canvas unit
    longest = max(rows[1] - rows[0], columns[1] - columns[0]) + cell
    scale = min(scale, 0.92 * size / longest)
    overhang = 0.15 if rng.random() < 0.2 else 0.0
    top = _place(rng, size, scale, rows, overhang)
    left = _place(rng, size, scale, columns, overhang)
    tall = _interpolate(distance, size, scale, top)  # [size, S]
    pixels = _interpolate(tall.T, size, scale, left).T * np.float32(scale)
    ramp = np.clip(0.5 - pixels / max(softness, 1e-3), 0.0, 1.0)
    return np.asarray(ramp * ramp * (3.0 - 2.0 * ramp), dtype=np.float32)


def _draw_outline(rng: np.random.Generator) -> FloatArray:
    """Draw one shape as a signed pseudo-distance (negative inside) on the canvas, [S, S]."""
    axis = np.linspace(-_REACH, _REACH, _CANVAS, dtype=np.float32)
    x, y = _warp(rng, *np.meshgrid(axis, axis))
    spine, radii = _random_spine(rng)
    distance = _tapered_path(x, y, spine, radii)
    for _ in range(_limb_count(rng)):
        root = int(rng.integers(len(spine)))
        limb, limb_radii = _random_limb(rng, spine[root], radii[root])
        distance = _smooth_minimum(distance, _tapered_path(x, y, limb, limb_radii))
    if rng.random() < 0.35:  # a bite makes the outline concave
        root = int(rng.integers(len(spine)))
        angle, radius = rng.uniform(0, 2 * np.pi), radii[root] * rng.uniform(0.4, 0.8)
        centre = spine[root] + radii[root] * 1.1 * np.array([np.cos(angle), np.sin(angle)])
        bite = np.hypot(x - centre[0], y - centre[1]) - np.float32(radius)
        distance = -_smooth_minimum(-distance, bite)
    return distance.astype(np.float32)


def _limb_count(rng: np.random.Generator) -> int:
    """Half of the objects are plain bodies; the others have up to six limbs."""
    return 0 if rng.random() < 0.5 else int(rng.integers(1, 7))


def _random_spine(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the bent centre line of a body, [P, 2], and its radii, [P]; about 1 in extent."""
    points = int(rng.integers(2, 5))
    elongation = rng.uniform(0.2, 1.3)
    heading = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0.0, 0.45, size=points))
    steps = np.stack([np.cos(heading), np.sin(heading)], axis=1) * (elongation / (points - 1))
    spine = np.cumsum(steps, axis=0) * 1.4
    radii = rng.uniform(0.35, 0.75, size=points) * (1.15 - 0.6 * min(elongation, 1.2))
    return spine - spine.mean(axis=0), np.maximum(radii, 0.16)


def _random_limb(
    rng: np.random.Generator, root: NDArray[np.float64], body_radius: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw a thin path of two segments that leaves the body at `root`."""
    heading = rng.uniform(0, 2 * np.pi) + np.array([0.0, rng.normal(0.0, 0.6)])
    lengths = body_radius + rng.uniform(0.15, 0.55, size=2)
    steps = np.stack([np.cos(heading), np.sin(heading)], axis=1) * lengths[:, None]
    points = root + np.concatenate([np.zeros((1, 2)), np.cumsum(steps * [[1.0], [0.6]], axis=0)])
    start = body_radius * rng.uniform(0.3, 0.5)
    return points, np.array([start, start * 0.8, start * rng.uniform(0.3, 0.8)])


def _warp(rng: np.random.Generator, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bend the canvas by a few random waves, so that no outline is made of straight pieces."""
    shift_x, shift_y = np.zeros_like(x), np.zeros_like(y)
    for wave in (1.2, 2.3, 4.1):
        angle, phase_x, phase_y = rng.uniform(0, 2 * np.pi, size=3).astype(np.float32)
        travel = np.float32(wave) * (x * np.cos(angle) + y * np.sin(angle))
        height = np.float32(rng.uniform(0.05, 0.22) / wave)
        shift_x += height * np.sin(travel + phase_x)
        shift_y += height * np.sin(travel + phase_y)
    return x + shift_x, y + shift_y


def _tapered_path(
    x: FloatArray, y: FloatArray, points: NDArray[np.float64], radii: NDArray[np.float64]
) -> FloatArray:
    """Pseudo-distance to a chain of segments whose radius changes linearly along each."""
    best: FloatArray | None = None
    for start, end, r0, r1 in zip(points[:-1], points[1:], radii[:-1], radii[1:]):
        (x0, y0), (dx, dy) = start.astype(np.float32), (end - start).astype(np.float32)
        length_squared = max(float(dx * dx + dy * dy), 1e-6)
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / np.float32(length_squared), 0.0, 1.0)
        away = np.hypot(x - x0 - along * dx, y - y0 - along * dy)
        distance = away - (np.float32(r0) + along * np.float32(r1 - r0))
        best = distance if best is None else _smooth_minimum(best, distance)
    assert best is not None, "a path needs two points"
    return best


def _smooth_minimum(a: FloatArray, b: FloatArray, width: float = 0.12) -> FloatArray:
    """Minimum of two fields with the crease between them rounded over `width`."""
    overlap = np.maximum(np.float32(width) - np.abs(a - b), 0.0)
    rounding = overlap * overlap * np.float32(0.25 / width)
    return np.asarray(np.minimum(a, b) - rounding, dtype=np.float32)


def _extent(inside: NDArray[np.bool_]) -> tuple[tuple[float, float], tuple[float, float]]:
    """First and last canvas coordinate covered by the shape, in rows and in columns."""
    axis = np.linspace(-_REACH, _REACH, _CANVAS)
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    assert rows.size, "a body always covers some of the canvas"
    return (axis[rows[0]], axis[rows[-1]]), (axis[columns[0]], axis[columns[-1]])


def _place(
    rng: np.random.Generator, size: int, scale: float, extent: tuple[float, float], overhang: float
) -> float:
    """Choose the pixel of the canvas origin so that the shape lies inside the image."""
    reach = (extent[1] - extent[0]) * scale
    slack = overhang * reach
    start = rng.uniform(-slack, max(size - reach, 0.0) + slack)
    return float(start - extent[0] * scale)


def _interpolate(field: FloatArray, size: int, scale: float, origin: float) -> FloatArray:
    """Canvas rows at pixel centres, linearly interpolated: [S, ...] -> float32 [size, ...].

    Gathered, not multiplied by a weight matrix: BLAS threads would stall other processes.
    """
    pixels = np.arange(size, dtype=np.float64) + 0.5
    cells = ((pixels - origin) / scale + _REACH) * (_CANVAS - 1) / (2.0 * _REACH)
    cells = np.clip(cells, 0.0, _CANVAS - 1.0)
    low = np.minimum(cells.astype(np.intp), _CANVAS - 2)
    share = (cells - low).astype(np.float32)[:, None]
    return field[low] * (1.0 - share) + field[low + 1] * share
