"""QuaRTZ: 8-bit integers whose leading zeros are dropped block by block.

Source: Kim et al., "Quantization via Residual Truncation and Zero Suppression for Diffusion
Models", arXiv 2509.26436, 2025.

Stage 1: i = clip(round(x / s8), -127, 127) with s8 = absmax / 127.
Stage 2, for each block of 16 (`act_group_size`) channels of a token or pixel with m = max |i|:
    FLAG = max(bit_length(m) - 3, 0),   code = sign(i) * (|i| >> FLAG),   x_hat = code * 2^FLAG * s8
The code is a sign and 3 magnitude bits, the 3-bit FLAG goes with each block: 4 + 3/16 bits.

`quartz` drops the bits below (truncation, as published), `quartz-rounded` rounds to the nearest
code and saturates.

Deviations and choices where the text is silent: no released code was found, the formulas are those
of public descriptions of the paper. s8 is static, per tensor and symmetric (the sign-magnitude
code has no zero-point), from the largest magnitude of the calibration images. Weights are the
common symmetric 4-bit grids per output channel from their range. At `act_bits` b the code keeps b
- 1 magnitude bits of the 7; 8 bits are stage 1 alone, which is what the operator that reads the
image gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.methods.collect import collect_inputs
from codtdq.methods.registry import SECOND_HAND, register_method
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import EPS, encode_shifted, nearest
from codtdq.planning.config import QuantConfig
from codtdq.schemes.base import InputScheme
from codtdq.schemes.stored import BITS, GROUP, Stored, flag, one_of, rules
from codtdq.schemes.weights import UniformWeight

STAGE_ONE_BITS = 8
LARGEST = 127


@dataclass(frozen=True, kw_only=True)
class QuartzConfig(QuantConfig):
    """Settings of QuaRTZ."""

    act_group_size: int = 16  # channels of a token that share a FLAG
    rounded: bool = False  # nearest code instead of truncation

    act_groups: ClassVar[bool] = True


class ZeroSuppressed(InputScheme):
    """Static 8-bit integers, of which each block keeps `bits` from its leading one on.

    step: [1], s8.
    """

    kind = "zero-suppressed"
    accepts = rules(bits=BITS, block=GROUP, rounded=flag)
    step: Tensor

    def __init__(
        self, bits: int, block: int = 16, rounded: bool = False, *, step: Tensor | None = None
    ) -> None:
        super().__init__()
        self.code_bits, self.block, self.rounded = bits, block, rounded
        self.register_buffer("step", torch.ones(1) if step is None else step.detach().reshape(1))

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """One step."""
        return {"step": one_of((1,), low=0)}

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]: integers of stage 1, suppressed in blocks of channels, times s8."""
        zero = torch.zeros_like(self.step)
        integers = encode_shifted(tokens, self.step, zero, -LARGEST, LARGEST)
        channels = integers.shape[-1]
        blocks = F.pad(integers, (0, -channels % self.block)).unflatten(-1, (-1, self.block))
        kept = suppress_zeros(blocks, self.code_bits, rounded=self.rounded)
        return kept.flatten(-2)[..., :channels] * self.step

    def bits(self, channels: int) -> float:
        """Codes, and a FLAG of as many bits as its largest value needs for every block."""
        flag = (STAGE_ONE_BITS - self.code_bits).bit_length()
        return self.code_bits + flag * -(-channels // self.block) / channels

    def settings(self) -> dict[str, Any]:
        """Width, block and rounding."""
        return {"bits": self.code_bits, "block": self.block, "rounded": self.rounded}


def flags_of(blocks: Tensor, bits: int) -> Tensor:
    """FLAG [..., 1] of blocks of integers [..., G]: magnitude bits beyond the bits - 1 kept."""
    largest = blocks.abs().amax(-1, keepdim=True)
    length = torch.frexp(largest).exponent  # of an integer m: bit_length(m)
    return (length - (bits - 1)).clamp(min=0)


def suppress_zeros(blocks: Tensor, bits: int, *, rounded: bool = False) -> Tensor:
    """Integers [..., G] (as floats) after the shift right and back left by each block's FLAG."""
    unit = torch.ldexp(torch.ones_like(blocks[..., :1]), flags_of(blocks, bits))
    if rounded:
        top = 2 ** (bits - 1) - 1
        return nearest(blocks / unit).clamp(-top, top) * unit
    return torch.div(blocks, unit, rounding_mode="trunc") * unit


_DECLARED: dict[str, Any] = {
    "source": "Kim et al., arXiv 2509.26436, 2025 (second-hand description)",
    "evidence": SECOND_HAND,
    "ranges": "dynamic",
    "granularity": "static per tensor, shift by token x 16 channels",
    "act_bits": "4 + 3/16",
}


@register_method(
    "quartz-rounded",
    config=QuartzConfig,
    settings={"rounded": True},
    title="QuaRTZ (rounded)",
    description="QuaRTZ with rounding to the nearest code instead of truncation",
    **_DECLARED,
)
@register_method(
    "quartz",
    config=QuartzConfig,
    title="QuaRTZ",
    description="static 8-bit integers, truncated below the leading bit of each block of 16",
    **_DECLARED,
)
def quartz(bench: Workbench) -> None:
    """One calibration pass for s8, then both sides of every operator."""
    config: QuartzConfig = bench.config
    seen = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, seen) if seen else {}
    for site in bench.sites:
        inputs, weight = None, None
        if site.act_bits is not None:
            step = (stats[site.name].absmax.amax() / LARGEST).clamp(min=EPS)
            inputs = ZeroSuppressed(site.act_bits, site.act_group, config.rounded, step=step)
        if site.weight_bits is not None:
            weight = UniformWeight.minmax(
                site.float_weight, site.weight_bits, group=site.weight_group
            )
        bench.install(site, inputs=inputs, weight=weight)
