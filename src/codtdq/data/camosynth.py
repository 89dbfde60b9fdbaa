"""camosynth: deterministic synthetic camouflage scenes, made from nothing but a seed.

An object is filled with a fresh draw of the background's own texture, whose parameters are
moved a little (the cues). Content depends only on (VERSION, split, index, size).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

from codtdq.data.dataset import check_limit, checked_index
from codtdq.data.sample import Sample
from codtdq.data.shapes import random_blob_mask
from codtdq.data.splits import PROFILES, SPLITS, Profile, Split
from codtdq.data.textures import (
    FloatArray,
    TextureParams,
    frequency_grid,
    from_frequencies,
    random_texture,
    random_texture_params,
    smooth_field,
    to_frequencies,
)
from codtdq.errors import DataError

VERSION = "camosynth-2"
MIN_SIZE = 32
DEFAULT_SIZE = 192
_SPECK_TAIL = 1.5  # exponent of the power-law tail: finite mean, infinite variance
_SPECK_ON_OBJECT = 0.25  # some specks hit objects too, or their absence would give objects away


@dataclass(frozen=True, eq=False)
class Scene:
    """A composed scene before rounding to 8 bit.

    image: float32 [H, W, 3] in [0, 1]; alpha: float32 [H, W], the soft object mask.
    """

    image: FloatArray
    alpha: FloatArray


def generate(split: str, index: int, size: int = DEFAULT_SIZE) -> Sample:
    """Make image `index` of a split, always the same for the same (split, index, size).

    Raises DataError for an unknown split, an index outside it or a size below MIN_SIZE.
    """
    part = check_request(split, index, size)
    rng = _generator(split, index, size)
    profile = PROFILES[part.profiles[int(rng.integers(len(part.profiles)))]]
    scene = random_scene(rng, size, profile)
    image = np.rint(np.clip(scene.image, 0.0, 1.0) * 255.0).astype(np.uint8)
    mask = np.where(scene.alpha > 0.5, 255, 0).astype(np.uint8)
    return Sample(name=sample_name(split, index), image=image, mask=mask)


class CamoSynth:
    """A camosynth split as a data set; images are made on access.

    limit: use only the first so many images; needed for `train`, which has no end.
    """

    def __init__(self, split: str, size: int = DEFAULT_SIZE, limit: int | None = None) -> None:
        check_limit(limit)
        count = check_request(split, 0, size).count
        if count is None and limit is None:
            raise DataError(f"camosynth/{split} has no end; give a limit (number of images)")
        self.name = f"camosynth/{split}"
        self.version = VERSION
        self.split = split
        self.size = size
        self.notes: list[str] = []
        self._length = min(bound for bound in (count, limit) if bound is not None)
        if count is not None and self._length < count:
            self.notes.append(f"{self.name}: {self._length} of {count} images used")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return generate(self.split, checked_index(index, len(self)), self.size)

    def names(self) -> list[str]:
        """Return the names of all images in order, without making them."""
        return [sample_name(self.split, index) for index in range(len(self))]


def sample_name(split: str, index: int) -> str:
    """Return the name of one image, unique over all splits."""
    return f"{split}-{index:05d}"


def check_request(split: str, index: int, size: int) -> Split:
    """Return the split's description, or raise DataError if the request cannot be served."""
    if split not in SPLITS:
        raise DataError(f"unknown camosynth split {split!r}; choose one of {', '.join(SPLITS)}")
    if size < MIN_SIZE:
        raise DataError(f"camosynth size {size} is too small; use {MIN_SIZE} or more")
    part = SPLITS[split]
    if index < 0 or (part.count is not None and index >= part.count):
        last = "any" if part.count is None else f"0 to {part.count - 1}"
        raise DataError(f"camosynth/{split} has no image {index}; valid indices: {last}")
    return part


def random_scene(rng: np.random.Generator, size: int, profile: Profile) -> Scene:
    """Compose one scene: background, objects in a moved texture, light, specks and grain."""
    alpha = _random_objects(rng, size, profile)
    params = random_texture_params(rng, band=profile.band)
    background = random_texture(rng, size, params)
    moved, tint = move_cues(rng, params, profile)
    filling = random_texture(rng, size, moved)
    _match_mean(filling, background, alpha)
    filling += tint
    image = background + alpha[:, :, None] * (filling - background)
    _apply_light(rng, image)
    image += random_specks(rng, alpha, profile)[:, :, None]
    grain = np.float32(rng.uniform(0.002, 0.012))
    image += grain * rng.standard_normal((size, size, 1), dtype=np.float32)
    return Scene(image=image, alpha=alpha)


def move_cues(
    rng: np.random.Generator, params: TextureParams, profile: Profile
) -> tuple[TextureParams, FloatArray]:
    """Move a texture away from the background by the profile's cue budget.

    The budget is shared among the cues at random, in squares. Returns the object's texture and
    its mean colour offset, float32 [3].
    """
    budget = rng.uniform(*profile.cue)
    colour = budget * np.sqrt(rng.uniform(*profile.colour))
    structure = np.sqrt(max(budget**2 - colour**2, 0.0))
    # A cue that this texture hardly shows (turning a pattern without direction) gets little.
    visible = np.array(
        [
            params.anisotropy / (params.anisotropy + 0.8),
            np.sqrt(params.band_share),
            1.0 - params.band_share,
            0.25,
        ]
    )
    shares = rng.dirichlet((1.0, 1.0, 1.0, 1.0)) * visible**2
    strengths = structure * np.sqrt(shares / shares.sum())
    turn, band, slope, gain = strengths * rng.choice((-1.0, 1.0), size=4)
    low, high = 0.6 * profile.band[0], 1.4 * profile.band[1]
    if not low < params.band * np.exp(0.13 * band) < high:
        band = -band  # keep the object's pattern neither coarser than itself nor finer than pixels
    direction = rng.standard_normal(3)
    direction /= max(float(np.linalg.norm(direction)), 1e-6)
    moved = replace(
        params,
        orientation=params.orientation + float(np.clip(0.2 * turn, -1.57, 1.57)),
        band=params.band * float(np.exp(0.13 * band)),
        slope=max(params.slope + 0.12 * float(slope), 0.2),
        gain=params.gain * float(np.exp(0.09 * gain)),
    )
    return moved, (0.016 * colour * direction).astype(np.float32)


def random_specks(rng: np.random.Generator, alpha: FloatArray, profile: Profile) -> FloatArray:
    """Draw bright and dark specks with power-law amplitudes, [H, W]; mostly off the objects."""
    size = alpha.shape[0]
    count = int(rng.poisson(rng.uniform(*profile.specks) * (size / DEFAULT_SIZE) ** 2))
    scale = rng.uniform(*profile.speck_scale)
    rows, columns = rng.integers(size, size=(2, count))
    heights = scale * (rng.pareto(_SPECK_TAIL, size=count) + 0.3)
    heights *= np.where(rng.random(count) < 0.7, 1.0, -1.0)
    keep = rng.random(count) < np.where(alpha[rows, columns] < 0.05, 1.0, _SPECK_ON_OBJECT)
    widths = rng.integers(3, size=count)
    total = np.zeros((size, size // 2 + 1), dtype=np.complex64)
    across, down = frequency_grid(size)
    for width, sigma in enumerate((0.5, 0.9, 1.5)):
        chosen = keep & (widths == width)
        points = np.zeros((size, size), dtype=np.float32)
        # A peak of height 1 needs the sum of its Gaussian, 2 pi sigma^2 (1 for a lone pixel).
        peak = np.clip(heights[chosen], -1.5, 1.5) * max(2.0 * np.pi * sigma**2, 1.0)
        np.add.at(points, (rows[chosen], columns[chosen]), peak.astype(np.float32))
        blur = np.exp((across**2 + down**2) * np.float32(-2.0 * (np.pi * sigma / size) ** 2))
        total += to_frequencies(points) * blur
    return from_frequencies(total, size)


def _random_objects(rng: np.random.Generator, size: int, profile: Profile) -> FloatArray:
    """Draw the scene's objects as one soft mask, float32 [H, W]."""
    alpha = np.zeros((size, size), dtype=np.float32)
    softness = rng.uniform(*profile.softness)
    low, high = profile.objects
    for _ in range(int(rng.integers(low, high + 1))):
        blob = random_blob_mask(rng, size, area=profile.area, softness=softness)
        alpha = np.maximum(alpha, blob)
    return alpha


def _match_mean(filling: FloatArray, background: FloatArray, alpha: FloatArray) -> None:
    """Shift `filling` in place so that its mean colour on the object is the background's mean."""
    inside = alpha > 0.5
    filling += background.mean(axis=(0, 1)) - filling[inside].mean(axis=0)


def _apply_light(rng: np.random.Generator, image: FloatArray) -> None:
    """Shade and tint the whole scene smoothly, in place: mean colour alone becomes unreliable."""
    size = image.shape[0]
    tint = rng.standard_normal(3, dtype=np.float32)
    tint -= tint.mean()  # keeps the brightness
    tint *= rng.uniform(0.0, 0.03) / max(float(np.abs(tint).max()), 1e-6)
    image *= 1.0 + rng.uniform(0.0, 0.12) * smooth_field(rng, size, cycles=1.5)[:, :, None]
    image += smooth_field(rng, size, cycles=4.0)[:, :, None] * tint


def _generator(split: str, index: int, size: int) -> np.random.Generator:
    """The random stream of one image, independent of every other image's."""
    keys = [zlib.crc32(VERSION.encode()), zlib.crc32(split.encode()), index, size]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(keys)))
