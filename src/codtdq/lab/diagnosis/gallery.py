"""Pictures and samples of a few images, kept while a diagnosis runs; bounded in size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codtdq.data.sample import Sample
from codtdq.lab.diagnosis.before_after import group_sample
from codtdq.lab.diagnosis.groups import Observation, zeroed_share
from codtdq.lab.diagnosis.record import GalleryItem, LayerSample
from codtdq.lab.diagnosis.tokens import TokenMaps

SAMPLE_TOKENS, SAMPLE_CHANNELS = 128, 32  # at most so many of one input, evenly spaced


@dataclass
class GallerySample:
    """One kept image: its arrays, and per method and layer how much of each token was zeroed."""

    sample: Sample
    band: NDArray[np.bool_]
    predictions: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    # method -> layer -> uint8 [N] of its first call, 255: all non-zero channels became zero
    zeroed: dict[str, dict[str, NDArray[np.uint8]]] = field(default_factory=dict)

    def note(self, method: str, layer: str, seen: Observation) -> None:
        """Keep how much of each token was lost."""
        levels = (zeroed_share(seen) * 255).to(torch.uint8).numpy()
        self.zeroed.setdefault(method, {}).setdefault(layer, levels)


def subsample(method: str, layer: str, seen: Observation) -> LayerSample:
    """Return evenly spaced tokens and channels of one input."""
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
        groups=group_sample(seen),
    )


def _paint(kept: GallerySample, method: str, layer: str, maps: TokenMaps) -> Tensor | None:
    """Zeroed evidence of one layer on the image, float [H, W] of 0 to 255; None if unknown."""
    found, token_map = kept.zeroed.get(method, {}).get(layer), maps.get(layer, 0)
    if found is None or token_map is None or len(found) != len(token_map.boxes):
        return None
    height, width = kept.band.shape
    return token_map.paint(torch.from_numpy(found).float(), maps.table, (height, width))


def render(kept: GallerySample, layers: list[str], maps: TokenMaps) -> GalleryItem:
    """Put the zeroed evidence of some layers on the image."""
    mask = kept.sample.mask
    assert mask is not None
    painted: dict[str, dict[str, NDArray[np.uint8]]] = {method: {} for method in kept.zeroed}
    for method, shown in painted.items():
        for layer in layers:
            canvas = _paint(kept, method, layer, maps)
            if canvas is not None:
                shown[layer] = canvas.to(torch.uint8).numpy()
    return GalleryItem(
        name=kept.sample.name,
        image=kept.sample.image,
        truth=mask,
        band=kept.band.astype(np.uint8) * np.uint8(255),
        predictions=kept.predictions,
        zeroed=painted,
    )
