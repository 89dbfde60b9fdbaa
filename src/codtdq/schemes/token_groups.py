"""Token groups with E4M3 scales: g channels of a token share a grid (Linear, dense convolutions).

The form of cod-tdq-plus under scales="float"; `carried` has the one that engines execute. The
channels are what these operators contract, so that the scale of a group leaves the sum once.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from codtdq.schemes.base import InputScheme
from codtdq.schemes.group_grid import ZERO_POINTS, quantize_groups, travelling_bits
from codtdq.schemes.lowered import FLOAT_SCALES, Unlowered
from codtdq.schemes.stored import BITS, GROUP, LARGEST_TRIALS, number, rules, whole, word


class TokenGroups(InputScheme):
    """Asymmetric groups along the channels; the last group of a token may be short.

    positions: tokens of an image, as calibration saw them: what an image's float32 is spread over.
    unit: what scales are multiples of, known beforehand; 0: a float32 that each image brings.
    """

    kind = "plus-token-groups"
    accepts = rules(
        bits=BITS,
        group=GROUP,
        trials=whole(1, LARGEST_TRIALS),
        zero_weight=number(0, 1e6),
        zero_point=word(*ZERO_POINTS),
        positions=whole(1),
        unit=number(0, 1e30),
    )
    along_pixels = False

    def __init__(
        self,
        bits: int,
        group: int = 32,
        trials: int = 1,
        zero_weight: float = 0.0,
        zero_point: str = "inside",
        positions: int = 1,
        unit: float = 0.0,
    ) -> None:
        super().__init__()
        self.code_bits, self.group, self.positions = bits, group, positions
        self.trials, self.zero_weight = trials, zero_weight
        self.zero_point, self.unit = zero_point, unit

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        images, positions, channels = tokens.shape
        size = max(1, min(self.group, channels))
        short = -channels % size
        padded = F.pad(tokens, (0, short), mode="replicate") if short else tokens
        values = quantize_groups(
            padded.unflatten(-1, (-1, size)),
            self.code_bits,
            trials=self.trials,
            zero_weight=self.zero_weight,
            zero_point=self.zero_point,
            unit=self.unit,
        )
        return values.reshape(images, positions, channels + short)[..., :channels]

    def bits(self, channels: int) -> float:
        """Codes, scale and zero-point of every group, and an image's float32 if it brings one."""
        return travelling_bits(
            self.code_bits, channels, self.positions, self.group, self.zero_point, self.unit
        )

    def lower(self) -> Unlowered:
        """None: scales are float."""
        return Unlowered(FLOAT_SCALES)

    def label(self) -> str:
        """For example `token g32`."""
        return f"{'pixel' if self.along_pixels else 'token'} g{self.group}"

    def settings(self) -> dict[str, Any]:
        """All constructor arguments."""
        return {
            "bits": self.code_bits,
            "group": self.group,
            "trials": self.trials,
            "zero_weight": self.zero_weight,
            "zero_point": self.zero_point,
            "positions": self.positions,
            "unit": self.unit,
        }
