"""Pictures and samples of a few images, kept while a diagnosis runs; bounded in size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codtdq.data.sample import Sample
from codtdq.diagnosis.groups import Observation
from codtdq.diagnosis.record import GalleryItem, LayerSample, MethodRecord
from codtdq.diagnosis.tokens import TokenMaps

SAMPLE_TOKENS, SAMPLE_CHANNELS = 128, 32  # at most so many of one input, evenly spaced
SHOWN_LAYERS = 3  # zeroed-evidence maps per image and method
SAMPLED_LAYERS = 2
MIN_TOKENS = 256  # of a layer that is sampled, if there is one


@dataclass
class Exhibit:
    """One kept image: its arrays, and per method and layer how much of each token was zeroed."""

    sample: Sample
    band: NDArray[np.bool_]
    predictions: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    # method -> layer -> uint8 [N] of its first call, 255: all non-zero channels became zero
    zeroed: dict[str, dict[str, NDArray[np.uint8]]] = field(default_factory=dict)

    def note(self, method: str, layer: str, seen: Observation) -> None:
        """Keep how much of each token was lost."""
        live = seen.x != 0
        share = (live & (seen.x_hat == 0)).sum(1) / live.sum(1).clamp(min=1)
        levels = (share * 255).to(torch.uint8).numpy()
        self.zeroed.setdefault(method, {}).setdefault(layer, levels)


def subsample(method: str, layer: str, seen: Observation) -> LayerSample:
    """Evenly spaced tokens and channels of one input."""
    tokens = torch.arange(0, len(seen.x), -(-len(seen.x) // SAMPLE_TOKENS))
    channels = torch.arange(0, seen.x.shape[1], -(-seen.x.shape[1] // SAMPLE_CHANNELS))
    labels = seen.labels if seen.labels is not None else torch.full((len(seen.x),), -1)
    width = len(channels)

    def pick(values: Tensor) -> NDArray[np.float32]:
        picked: NDArray[np.float32] = values[tokens][:, channels].flatten().numpy()
        return picked

    return LayerSample(
        method=method,
        layer=layer,
        x=pick(seen.x),
        x_hat=pick(seen.x_hat),
        token=tokens.repeat_interleave(width).numpy(),
        boundary=labels[tokens].repeat_interleave(width).to(torch.int8).numpy(),
    )


def worst_layers(methods: list[MethodRecord], count: int = SHOWN_LAYERS) -> list[str]:
    """Layers with the highest rho_0 on boundaries, on average over the quantized methods.

    One per token grid, so that the pictures show coarse and fine losses alike.
    """
    means, grids = _boundary_losses(methods), _grids(methods)
    by_grid: dict[tuple[int, int] | None, str] = {}
    for layer in sorted(means, key=lambda layer: (-means[layer], layer)):
        by_grid.setdefault(grids[layer], layer)
    return list(by_grid.values())[:count]


def sampled_layers(methods: list[MethodRecord]) -> list[str]:
    """Two layers with tokens enough for a histogram.

    The one with the worst boundary rho_0, and the Linear with the largest disparity in FP32.
    """
    grids, means = _grids(methods), _boundary_losses(methods)
    cells = {name: 0 if grid is None else grid[0] * grid[1] for name, grid in grids.items()}
    enough = min(MIN_TOKENS, max(cells.values(), default=0))
    fine = [name for name in means if cells[name] >= enough]
    names = sorted(fine, key=lambda name: (-means[name], name))[:1]
    wide = [
        (layer.disparity, layer.name)
        for record in methods
        for layer in record.layers
        if layer.mode == "float" and layer.kind == "linear" and cells[layer.name] >= enough
    ]
    defined = [(value, name) for value, name in wide if value == value and name not in names]
    return names + [name for _, name in sorted(defined, reverse=True)[: SAMPLED_LAYERS - 1]]


def _boundary_losses(methods: list[MethodRecord]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for record in methods:
        for layer in record.layers:
            if layer.boundary is not None and layer.mode != "float":
                found.setdefault(layer.name, []).append(layer.boundary.rho0)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _grids(methods: list[MethodRecord]) -> dict[str, tuple[int, int] | None]:
    return {layer.name: layer.grid for record in methods for layer in record.layers}


def hang(exhibit: Exhibit, layers: list[str], maps: TokenMaps) -> GalleryItem:
    """Put the zeroed evidence of some layers on the image."""
    mask = exhibit.sample.mask
    assert mask is not None
    size = (mask.shape[0], mask.shape[1])
    painted: dict[str, dict[str, NDArray[np.uint8]]] = {}
    for method, found in exhibit.zeroed.items():
        painted[method] = {}
        for layer in layers:
            token_map = maps.get(layer, 0)
            if layer in found and token_map is not None:
                values = torch.from_numpy(found[layer]).float()
                canvas = token_map.paint(values, maps.table, size)
                painted[method][layer] = canvas.to(torch.uint8).numpy()
    return GalleryItem(
        name=exhibit.sample.name,
        image=exhibit.sample.image,
        truth=mask,
        band=exhibit.band.astype(np.uint8) * np.uint8(255),
        predictions=exhibit.predictions,
        zeroed=painted,
    )
