"""The boundary band of the float model's own prediction, on every operator's tokens.

The protocol is that of the diagnosis (S4.4) with one difference: the mask is the prediction of the
float model, cut at half of its range. Selection therefore needs no label.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codtdq.evaluation.masks import to_mask
from codtdq.lab.diagnosis.boundary import BOUNDARY, BoundaryProtocol, boundary_band
from codtdq.lab.diagnosis.survey import Labels
from codtdq.lab.diagnosis.tokens import token_maps
from codtdq.lab.selection.features import FloatReference


class PredictedBand:
    """Which tokens lie on the band, by image, operator and call."""

    def __init__(
        self, model: nn.Module, reference: FloatReference, protocol: BoundaryProtocol | None = None
    ) -> None:
        protocol = protocol or BoundaryProtocol()
        maps = token_maps(model, reference.batches[0])
        postprocess = getattr(getattr(model, "info", None), "postprocess", "sigmoid")
        self._images = []
        for batch, logits in zip(reference.batches, reference.logits):
            mask = _mask(logits, (batch.shape[-2], batch.shape[-1]), postprocess)
            band = boundary_band(mask, protocol.r_in, protocol.r_out)
            self._images.append(Labels(band, maps, protocol))

    def labels(self, image: int, operator: str, call: int, tokens: int) -> Tensor | None:
        """Return whether tokens are on the band, bool [tokens]; None where they have no place."""
        found = self._images[image].of(operator, call, tokens)
        return None if found is None else found == BOUNDARY


def _mask(logits: Tensor, size: tuple[int, int], postprocess: str) -> NDArray[np.uint8]:
    """Return a mask uint8 [H, W]; a network that predicts no map [1, 1, h, w] has no band."""
    if logits.ndim != 4 or logits.shape[1] != 1 or not bool(torch.isfinite(logits).all()):
        return np.zeros(size, np.uint8)
    return to_mask(logits[0], size, postprocess)
