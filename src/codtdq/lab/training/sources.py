"""Sources of training pairs. Each draw is a function of the generator and position passed in."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from codtdq.data.camosynth import generate
from codtdq.data.folder import ImageMaskFolder
from codtdq.data.images import ImageFolder
from codtdq.data.sample import Sample
from codtdq.errors import ConfigError
from codtdq.lab.training.augment import Affine, degrade, jitter_colours, random_view, warp
from codtdq.lab.training.compose import compose_camouflage
from codtdq.lab.training.config import SYNTHETIC_KINDS, SourceSpec
from codtdq.lab.training.resize import shrink, squash_sample

Pair = tuple[np.ndarray, np.ndarray]  # image uint8 [S, S, 3], mask uint8 [S, S]

_SYNTH_WINDOW = 1024  # generated images that stay in memory
_SYNTH_START = 64  # generated images that the first batches choose from
_MIN_OBJECT = 0.004  # share of the image below which a crop has lost its object


class Source(Protocol):
    """Anything that gives training pairs."""

    def draw(self, rng: np.random.Generator, position: float) -> Pair:
        """Return one augmented pair; `position` counts the draws that this source gave before."""
        ...


class CamosynthSource:
    """A split of camosynth, each image reused some times before newer ones replace it."""

    def __init__(self, size: int, *, seed: int, reuse: float, split: str = "train") -> None:
        self.size, self.reuse, self.split = size, reuse, split
        self.first = seed * 1_000_000  # other seeds see other images
        self._cache: OrderedDict[int, Pair] = OrderedDict()

    def draw(self, rng: np.random.Generator, position: float) -> Pair:
        """Return a recent image under a random symmetry, sometimes zoomed, with other colours."""
        newest = _SYNTH_START + int(position / self.reuse)
        image, mask = self._fetch(int(rng.integers(max(0, newest - _SYNTH_WINDOW), newest)))
        if rng.random() < 0.3:
            view = random_view(
                rng, self.size, self.size, self.size, sides=(0.7, 1.0), max_angle=20, stretch=0.2
            )
            image, mask = _crop_both(image, mask, view, self.size)
        quarter_turns, mirror = int(rng.integers(4)), rng.random() < 0.5
        image, mask = np.rot90(image, quarter_turns), np.rot90(mask, quarter_turns)
        if mirror:
            image, mask = image[:, ::-1], mask[:, ::-1]
        return jitter_colours(rng, np.ascontiguousarray(image), 0.5), mask

    def _fetch(self, index: int) -> Pair:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        pair = _pair(squash_sample(generate(self.split, self.first + index), self.size))
        self._cache[index] = pair
        if len(self._cache) > _SYNTH_WINDOW:
            self._cache.popitem(last=False)
        return pair


class ComposeSource:
    """Camouflage compositions made from a folder of natural photos."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self.folder = ImageFolder(folder)
        self._photos: dict[int, np.ndarray] = {}

    def draw(self, rng: np.random.Generator, position: float) -> Pair:
        """Return a fresh composition with other colours and camera artefacts."""
        index = int(rng.integers(len(self.folder)))
        if index not in self._photos:
            self._photos[index] = shrink(self.folder[index].image, 2 * self.size)
        image, mask = compose_camouflage(rng, self._photos[index], self.size)
        return degrade(rng, jitter_colours(rng, image, 0.5)), mask


class PairsSource:
    """Real images with masks, except those held out for validation."""

    def __init__(self, root: Path, size: int, *, holdout: int) -> None:
        self.size = size
        # a little larger than needed, so that crops keep their detail without aliasing
        self.stored = round(1.25 * size)
        self.folder = ImageMaskFolder(root)
        self.train, self.held_out = split_holdout(self.folder.names(), holdout)
        self._pairs: dict[int, Pair] = {}

    def draw(self, rng: np.random.Generator, position: float) -> Pair:
        """Return a random crop, flip and small rotation with other colours."""
        image, mask = self._fetch(self.train[int(rng.integers(len(self.train)))])
        angle = 15.0 if rng.random() < 0.3 else 0.0
        side = self.stored
        view = random_view(
            rng, side, side, self.size, sides=(0.6, 1.0), stretch=0.25, max_angle=angle
        )
        image, mask = _crop_both(image, mask, view, self.size)
        return degrade(rng, jitter_colours(rng, image, 0.7)), mask

    def _fetch(self, index: int) -> Pair:
        if index not in self._pairs:
            self._pairs[index] = _pair(squash_sample(self.folder[index], self.stored))
        return self._pairs[index]

    def validation(self) -> list[Sample]:
        """Return the held-out images at training size."""
        return [squash_sample(self.folder[index], self.size) for index in self.held_out]


def build_source(spec: SourceSpec, size: int, *, seed: int, reuse: float) -> Source:
    """Return the source that a specification describes."""
    if spec.kind in SYNTHETIC_KINDS:
        split = SYNTHETIC_KINDS[spec.kind]
        return CamosynthSource(size, seed=seed, reuse=reuse, split=split)
    assert spec.path is not None
    if spec.kind == "compose":
        return ComposeSource(Path(spec.path), size)
    return PairsSource(Path(spec.path), size, holdout=spec.holdout)


def camosynth_validation(count: int, size: int) -> list[Sample]:
    """Return the first images of camosynth's val split at training size."""
    return [squash_sample(generate("val", index), size) for index in range(count)]


def split_holdout(names: Sequence[str], holdout: int) -> tuple[list[int], list[int]]:
    """Positions to (train on, hold out): the `holdout` names that hash lowest are kept out.

    The choice depends on names only, so every run and machine holds out the same images.
    """
    if holdout >= len(names):
        raise ConfigError(f"holdout is {holdout} of {len(names)} images; leave some to train on")
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    chosen = set(ranked[:holdout])
    train = [i for i, name in enumerate(names) if name not in chosen]
    return train, [i for i, name in enumerate(names) if name in chosen]


def _crop_both(image: np.ndarray, mask: np.ndarray, view: Affine, size: int) -> Pair:
    cropped = warp(mask, view, size)
    if cropped.mean() < 255 * _MIN_OBJECT <= mask.mean():
        # the crop missed the object: take the whole picture instead
        scale = image.shape[0] / size
        view = (scale, 0.0, 0.0, 0.0, scale, 0.0)
        cropped = warp(mask, view, size)
    return warp(image, view, size), cropped


def _pair(sample: Sample) -> Pair:
    assert sample.mask is not None
    return sample.image, sample.mask
