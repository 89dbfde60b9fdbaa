"""Pixel groups: g consecutive pixels of one channel share a grid (depthwise convolutions).

A depthwise convolution contracts pixels and mixes no channels: a range that 32 channels of a pixel
share would measure each by the loudest of its neighbours. Convolutions over a handful of channels
use it as well: there, metadata per pixel would outweigh the codes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from codtdq.layers.input_quantizers import InputQuantizer
from codtdq.methods.plus.grid import quantize_groups, travelling_bits


class PixelGroups(InputQuantizer):
    """Asymmetric groups along the positions of each channel, in reading order."""

    kind = "plus-pixel-groups"

    def __init__(
        self,
        bits: int,
        group: int = 32,
        trials: int = 1,
        zero_weight: float = 0.0,
        zero_point: str = "inside",
        positions: int = 1,
    ) -> None:
        super().__init__()
        self.code_bits, self.group, self.positions = bits, group, positions
        self.trials, self.zero_weight = trials, zero_weight
        self.zero_point = zero_point

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        images, positions, channels = tokens.shape
        size = max(1, min(self.group, positions))
        short = -positions % size
        lines = tokens.transpose(1, 2)
        padded = F.pad(lines, (0, short), mode="replicate") if short else lines
        values = quantize_groups(
            padded.unflatten(-1, (-1, size)), self.code_bits, trials=self.trials,
            zero_weight=self.zero_weight, zero_point=self.zero_point,
        )  # fmt: skip
        return values.reshape(images, channels, positions + short)[..., :positions].transpose(1, 2)

    def bits(self, channels: int) -> float:
        """Codes, scale and zero-point of every group, and the image's float32."""
        return travelling_bits(
            self.code_bits, self.positions, channels, self.group, self.zero_point
        )

    def settings(self) -> dict[str, Any]:
        """All constructor arguments."""
        return {
            "bits": self.code_bits, "group": self.group, "trials": self.trials,
            "zero_weight": self.zero_weight, "zero_point": self.zero_point,
            "positions": self.positions,
        }  # fmt: skip
