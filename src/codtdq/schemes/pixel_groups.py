"""Pixel groups with E4M3 scales: g pixels of one channel share a grid (depthwise convolutions).

A depthwise convolution contracts pixels and mixes no channels: a range that 32 channels of a pixel
share would measure each by the loudest of its neighbours. Convolutions over a handful of channels
use it as well: there, metadata per pixel would outweigh the codes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from codtdq.schemes.group_grid import quantize_groups, travelling_bits
from codtdq.schemes.token_groups import TokenGroups


class PixelGroups(TokenGroups):
    """Asymmetric groups along the positions of each channel, in reading order."""

    kind = "plus-pixel-groups"
    along_pixels = True

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        images, positions, channels = tokens.shape
        size = max(1, min(self.group, positions))
        short = -positions % size
        lines = tokens.transpose(1, 2)
        padded = F.pad(lines, (0, short), mode="replicate") if short else lines
        values = quantize_groups(
            padded.unflatten(-1, (-1, size)),
            self.code_bits,
            trials=self.trials,
            zero_weight=self.zero_weight,
            zero_point=self.zero_point,
            unit=self.unit,
        )
        return values.reshape(images, channels, positions + short)[..., :positions].transpose(1, 2)

    def bits(self, channels: int) -> float:
        """Codes, scale and zero-point of every group, and an image's float32 if it brings one."""
        return travelling_bits(
            self.code_bits, self.positions, channels, self.group, self.zero_point, self.unit
        )
