"""Inputs of cod-tdq-plus as carriers: x_hat = u m (q - z) with whole multipliers m of groups.

u is a float32 of each token, image or channel of an image, m (q - z) a signed byte. The range of a
group is chosen by weighing: of the smallest multiplier that clips nothing and the next smaller ones
(`trials`), the one with the least sum of squared errors wins.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from codtdq.numerics.affine import grid_of
from codtdq.numerics.carrier import FACTOR_BITS, Carried
from codtdq.numerics.carry import CarrySpec, carry
from codtdq.numerics.grouping import group_count
from codtdq.schemes.base import InputScheme
from codtdq.schemes.lowered import MAX_GROUP, MAX_TRIALS, LoweredInput, Unlowered
from codtdq.schemes.stored import (
    BITS,
    GROUP,
    LARGEST_TRIALS,
    UNITS,
    Stored,
    flag,
    number,
    one_of,
    rules,
    whole,
    word,
)


class TokenCarriers(InputScheme):
    """Groups along the channels of a token (Linear, dense convolutions).

    unit: "token", or "image" in front of a kernel of several taps, whose sum mixes tokens.
    positions: tokens of an image, as calibration saw them: what an image's float32 is spread over.
    """

    kind = "token-carriers"
    accepts = rules(
        bits=BITS,
        group=GROUP,
        trials=whole(1, LARGEST_TRIALS),
        zero_weight=number(0, 1e6),
        zero_point=flag,
        positions=whole(1),
        unit=word(*UNITS),
    )
    ranges: ClassVar[str] = "group"

    def __init__(
        self,
        bits: int,
        group: int = 32,
        trials: int = 1,
        zero_weight: float = 0.0,
        zero_point: bool = True,
        positions: int = 1,
        unit: str = "token",
    ) -> None:
        super().__init__()
        # 8 bits with a zero-point are no signed byte
        self.how = CarrySpec(
            bits, self.ranges, unit, group, zero_point and bits < 8, trials, zero_weight
        )
        self.positions, self.zero_point = positions, zero_point

    def carry(self, tokens: Tensor) -> Carried:
        """Carriers of tokens [B, N, C]."""
        return carry(tokens, self.how)

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        return self.carry(tokens).decoded().reshape(tokens.shape)

    def bits(self, channels: int) -> float:
        """Codes, multiplier and zero-point of every group, and the share of a float32."""
        groups = group_count(channels, self.how.group)
        shared = channels if self.how.unit == "token" else channels * self.positions
        return self.how.bits + self._side_bits * groups / channels + FACTOR_BITS / shared

    @property
    def _side_bits(self) -> int:
        return self.how.multiplier_bits + (self.how.bits if self.how.asymmetric else 0)

    def lower(self) -> LoweredInput | Unlowered:
        """Carriers of groups."""
        if self.how.group > MAX_GROUP:
            return Unlowered(f"groups of {self.how.group}, more than {MAX_GROUP}")
        if self.how.trials > MAX_TRIALS:
            return Unlowered(f"{self.how.trials} multipliers to try, more than {MAX_TRIALS}")
        return LoweredInput(self.how)

    def label(self) -> str:
        """For example `token g32 m3 z4`: 3 bits for a multiplier, 4 for a zero-point."""
        name = "pixel" if self.ranges == "pixel" else "token"
        zero = f" z{self.how.bits}" if self.how.asymmetric else ""
        return f"{name} g{self.how.group} m{self.how.multiplier_bits}{zero}"

    def settings(self) -> dict[str, Any]:
        """All constructor arguments."""
        return {
            "bits": self.how.bits,
            "group": self.how.group,
            "trials": self.how.trials,
            "zero_weight": self.how.zero_weight,
            "zero_point": self.zero_point,
            "positions": self.positions,
            "unit": self.how.unit,
        }


class PixelCarriers(TokenCarriers):
    """Groups along the pixels of a channel, in reading order (depthwise, few channels).

    A depthwise convolution contracts pixels and mixes no channels: a range that 32 channels of a
    pixel share would measure each by the loudest of its neighbours. Convolutions over a handful of
    channels use it as well: there, metadata per pixel would outweigh the codes.

    unit: "channel" in front of a depthwise convolution, else "image".
    """

    kind = "pixel-carriers"
    ranges = "pixel"

    def bits(self, channels: int) -> float:
        """Codes, multiplier and zero-point of every group, and the share of a float32."""
        groups = group_count(self.positions, self.how.group)
        shared = self.positions * (1 if self.how.unit == "channel" else channels)
        return self.how.bits + self._side_bits * groups / self.positions + FACTOR_BITS / shared


class StaticCarriers(InputScheme):
    """One calibrated grid with a zero-point for the whole tensor: the image itself.

    8-bit codes less their zero-point are sums of two signed bytes. step, zero: [1].
    """

    kind = "static-carriers"
    accepts = rules(bits=BITS, unit=word(*UNITS))
    step: Tensor
    zero: Tensor

    def __init__(
        self,
        bits: int,
        unit: str = "token",
        *,
        step: Tensor | None = None,
        zero: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.how = CarrySpec(bits, "tensor", unit, asymmetric=True)
        self.register_buffer("step", torch.ones(1) if step is None else step.detach().float())
        self.register_buffer("zero", torch.zeros(1) if zero is None else zero.detach().float())

    @classmethod
    def spanning(cls, low: Tensor, high: Tensor, bits: int, unit: str) -> StaticCarriers:
        """The grid over [low, high], each [1]."""
        step, zero = grid_of(low, high, bits, symmetric=False)
        return cls(bits, unit, step=step, zero=zero)

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """One grid; its zero-point is a code."""
        top = 2**self.how.bits - 1
        return {"step": one_of((1,), low=0), "zero": one_of((1,), low=0, high=top)}

    def carry(self, tokens: Tensor) -> Carried:
        """Carriers of tokens [B, N, C]."""
        return carry(tokens, self.how, self.step, self.zero)

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        return self.carry(tokens).decoded().reshape(tokens.shape)

    def bits(self, channels: int) -> float:
        """Fixed grids travel with the model, not with the activation."""
        return float(self.how.bits)

    def lower(self) -> LoweredInput:
        """Carriers under a given step."""
        return LoweredInput(self.how, self.step, self.zero)

    def label(self) -> str:
        """`static`."""
        return "static"

    def settings(self) -> dict[str, Any]:
        """Width and unit."""
        return {"bits": self.how.bits, "unit": self.how.unit}
