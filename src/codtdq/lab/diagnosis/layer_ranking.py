"""Rank layers by how much a picture of them shows: where methods differ, and tokens as well.

The layers that lose most are no good to look at: nearly all is gone in all of their tokens, and
their grids are often a handful of cells. A layer's score is cbrt(difference x spread^2), where

- difference: largest minus smallest mean zeroed share of the methods;
- spread: standard deviation of the zeroed share over the image, mean over the methods: that of the
  means of `BLOCKS` x `BLOCKS` blocks, less what noise from token to token makes of it;

both as the mean over the kept images. With one method the score is the spread. Only layers whose
tokens have a place take part, with `ENOUGH_TOKENS` and `ENOUGH_CHANNELS` or, in a role that has
none of these, those of the finest grid. The best layer of each role comes first, then the best of
the other pairs of role and grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from codtdq.lab.diagnosis.gallery import GallerySample
from codtdq.lab.diagnosis.record import LayerRecord, LayerSample, MethodRecord
from codtdq.lab.diagnosis.tokens import TokenMap, TokenMaps

SHOWN_LAYERS = 4  # zeroed-evidence maps per image and method
SAMPLED_LAYERS = 2
ENOUGH_TOKENS = 400  # a grid of 20 x 20, stride 8 at 160 pixels
ENOUGH_CHANNELS = 16  # the zeroed share of fewer is 0 or 1 and little else
BLOCKS = 10  # a side: 4 x 4 tokens of the finest grid at 160 pixels
FEWEST_GROUPS = 32  # of a region, for a distribution


@dataclass(frozen=True)
class Candidate:
    """One layer that could be shown."""

    name: str
    role: str
    grid: tuple[int, int]
    channels: int
    score: float

    @property
    def tokens(self) -> int:
        """Cells of the grid."""
        return self.grid[0] * self.grid[1]


def rank_layers(
    methods: Sequence[MethodRecord],
    kept_samples: Sequence[GallerySample],
    maps: TokenMaps,
    count: int = SHOWN_LAYERS,
) -> list[str]:
    """Return at most `count` layers, the role of the highest score first."""
    roles: dict[str, list[Candidate]] = {}
    for candidate in _candidates(methods, kept_samples, maps):
        roles.setdefault(candidate.role, []).append(candidate)
    fit = [candidate for found in roles.values() for candidate in _fine_enough(found)]
    ranked = sorted(fit, key=lambda candidate: (-candidate.score, candidate.name))
    first: dict[str, Candidate] = {}
    others: dict[tuple[str, tuple[int, int]], Candidate] = {}
    for candidate in ranked:
        if candidate is first.setdefault(candidate.role, candidate):
            continue
        if candidate.grid != first[candidate.role].grid:
            others.setdefault((candidate.role, candidate.grid), candidate)
    return [candidate.name for candidate in (*first.values(), *others.values())][:count]


def _fine_enough(found: list[Candidate]) -> list[Candidate]:
    fit = [c for c in found if c.tokens >= ENOUGH_TOKENS and c.channels >= ENOUGH_CHANNELS]
    finest = max(candidate.tokens for candidate in found)
    return fit or [candidate for candidate in found if candidate.tokens == finest]


def bounded_layer(samples: Sequence[LayerSample]) -> str | None:
    """The layer where the projection does most to token groups; None if no method bounds any.

    By how much the shares of non-boundary groups beyond tau and zr fall, times the difference of
    mean rho_0 between boundary and non-boundary groups, summed over the methods: an input that is
    nearly the same at all tokens falls by all and shows nothing.
    """
    found: dict[str, float] = {}
    for sample in samples:
        groups = sample.groups
        if groups is None or min(np.sum(groups.boundary == k) for k in (0, 1)) < FEWEST_GROUPS:
            continue
        elsewhere = groups.boundary == 0
        fall = 0.0
        for before, after, bound in (
            (groups.eta_before, groups.eta_after, groups.tau),
            (groups.rho0_before, groups.rho0_after, groups.zr),
        ):
            if bound is not None:
                beyond = ((values[elsewhere] > bound).mean() for values in (before, after))
                fall += max(float(next(beyond) - next(beyond)), 0.0)
        regions = (groups.rho0_before[groups.boundary == k].mean() for k in (0, 1))
        apart = abs(float(next(regions) - next(regions)))
        found[sample.layer] = found.get(sample.layer, 0.0) + fall * apart
    return max(found, key=lambda name: (found[name], name), default=None)


def _candidates(
    methods: Sequence[MethodRecord], kept_samples: Sequence[GallerySample], maps: TokenMaps
) -> list[Candidate]:
    layers: dict[str, LayerRecord] = {
        layer.name: layer
        for record in methods
        for layer in record.layers
        if layer.grid is not None and layer.boundary is not None
    }
    return [
        Candidate(name, layer.role, layer.grid, layer.channels, score)
        for name, layer in layers.items()
        if layer.grid is not None and (score := _score(name, kept_samples, maps)) > 0
    ]


def _score(layer: str, kept_samples: Sequence[GallerySample], maps: TokenMaps) -> float:
    """Zero without any map of the layer."""
    token_map = maps.get(layer, 0)
    if token_map is None:
        return 0.0
    place = _blocks(token_map, maps.table)
    spreads, differences = [], []
    several = False
    for kept in kept_samples:
        found = [shares[layer] for shares in kept.zeroed.values() if layer in shares]
        known = [shares / 255 for shares in found if len(shares) == len(place)]
        if not known:
            continue
        means = [float(shares.mean()) for shares in known]
        spreads.append(float(np.mean([structure(shares, place) for shares in known])))
        differences.append(max(means) - min(means))
        several |= len(known) > 1
    if not spreads:
        return 0.0
    spread, difference = float(np.mean(spreads)), float(np.mean(differences))
    return (difference * spread**2) ** (1 / 3) if several else spread


def _blocks(token_map: TokenMap, table: Tensor) -> NDArray[np.int64]:
    """Return the block of the image that holds the centre of each token [N]; -1 for padding."""
    first = token_map.boxes[:, 0]
    edges = table[first.clamp(min=0)].numpy()
    row, column = (
        np.minimum((edges[:, k] + edges[:, k + 2]) / 2 * BLOCKS, BLOCKS - 1) for k in (0, 1)
    )
    place = row.astype(np.int64) * BLOCKS + column.astype(np.int64)
    return np.where(first.numpy() < 0, -1, place)


def structure(shares: NDArray[np.floating], place: NDArray[np.int64]) -> float:
    """Deviation between blocks of tokens [N], noise within them taken off (one-way ANOVA)."""
    known = place >= 0
    shares, place = shares[known], place[known]
    if not len(shares):
        return 0.0
    count = np.bincount(place)
    total, squares = np.bincount(place, shares), np.bincount(place, shares**2)
    filled = count > 0
    count, means = count[filled], total[filled] / count[filled]
    inner = squares[filled] - count * means**2  # squared deviations within each block
    freedom = len(shares) - len(count)
    noise = inner.sum() / freedom * (1 / count).mean() if freedom else 0.0
    return math.sqrt(max(float(means.var() - noise), 0.0))
