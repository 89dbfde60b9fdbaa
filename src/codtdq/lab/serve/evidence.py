"""Where evidence is lost: per layer, how much of each token's input falls into the zero bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codtdq.evaluation.layers import zero_mass
from codtdq.evaluation.predict import info_of, mask_logits
from codtdq.lab.diagnosis.groups import Observation, zeroed_share
from codtdq.lab.diagnosis.listening import listening
from codtdq.lab.diagnosis.tokens import TokenMap, TokenMaps, token_maps
from codtdq.numerics import ActivationResult

SIDE = 112  # pixels of a heat map: more than most layers have tokens


@dataclass(frozen=True)
class LayerEvidence:
    """One layer: the share of its non-zero inputs that became zero, and where they were.

    map: uint8 [SIDE, SIDE], 255: all channels of the token were lost.
    """

    layer: str
    zero_mass: float
    map: NDArray[np.uint8]


class Evidence:
    """Heat maps of quantized versions of one float model; its token maps are traced once."""

    def __init__(self, model: nn.Module) -> None:
        info = info_of(model)
        size = info.input_size
        self._maps: TokenMaps = token_maps(model, torch.zeros(1, 3, size, size))
        self._info = info
        self._places: dict[int, Tensor] = {}  # by map: which token lies on each pixel

    def of(self, model: nn.Module, inputs: Tensor) -> list[LayerEvidence]:
        """Run a quantized model on an input [1, 3, size, size]; layers in running order.

        While somebody listens, operators simulate themselves: the same rounding, more slowly.
        """
        found: dict[str, LayerEvidence] = {}

        def hear(name: str, x: Tensor, x_hat: Tensor, result: ActivationResult | None) -> None:
            token_map = self._maps.get(name, 0)
            if name in found or token_map is None or len(token_map.boxes) != len(x):
                return
            share = zeroed_share(Observation(x, x_hat))
            picture = self._painted(token_map, share)
            found[name] = LayerEvidence(name, zero_mass(x, x_hat), picture)

        with listening(model, hear):
            mask_logits(model, self._info, inputs)
        return list(found.values())

    def _painted(self, token_map: TokenMap, share: Tensor) -> NDArray[np.uint8]:
        key = id(token_map)  # alive as long as the maps are
        if key not in self._places:
            numbers = torch.arange(1, len(token_map.boxes) + 1).float()
            painted = token_map.paint(numbers, self._maps.table, (SIDE, SIDE))
            self._places[key] = painted.long()
        levels = torch.cat([torch.zeros(1), share * 255])  # 0: no token there
        picture: NDArray[np.uint8] = levels[self._places[key]].to(torch.uint8).numpy()
        return picture
