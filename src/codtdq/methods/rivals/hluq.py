"""Hybrid log-uniform grids (HLUQ of AHCPTQ): dense at the low end, uniform above a threshold.

With u = x - x_min, r = x_max - x_min, L = 2^b gamma logarithmic and U = 2^b - L uniform levels:
    s_l = rho r,  s_u = r (1 - rho) / ((2^b - 1) (1 - gamma))
    u <= s_l: k = round(-log2(u / s_l));  u_hat = 0 if k >= L, else s_l 2^-k
    u >  s_l: u_hat = s_l + s_u clip(round((u - s_l) / s_u), 0, U - 1)
and x_hat = u_hat + x_min: 2^b values, as s_l itself belongs to both parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codtdq.methods.rivals.learning import LearnableInput
from codtdq.numerics.affine import EPS, encode_affine, nearest
from codtdq.schemes.base import InputScheme
from codtdq.schemes.stored import BITS, Stored, one_of, rules, whole

_TINY = 1e-30  # the logarithm of zero is never asked for


class HybridLogUniform(InputScheme):
    """One static hybrid grid for the whole tensor. low, threshold, step: [1]."""

    kind = "hybrid-log-uniform"
    accepts = rules(bits=BITS, log_levels=whole(0, 256))
    low: Tensor
    threshold: Tensor
    step: Tensor

    def __init__(
        self,
        bits: int,
        log_levels: int,
        *,
        low: Tensor | None = None,
        threshold: Tensor | None = None,
        step: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.code_bits, self.log_levels = bits, log_levels
        for name, value in (("low", low), ("threshold", threshold), ("step", step)):
            kept = torch.ones(1) if value is None else value.detach().float().reshape(1)
            self.register_buffer(name, kept)

    @classmethod
    def spanning(
        cls, low: Tensor, high: Tensor, bits: int, *, rho: float, gamma: float
    ) -> HybridLogUniform:
        """The grid over [low, high] with a threshold share rho and a share gamma of log levels."""
        extent = (high - low).clamp(min=EPS)
        step = extent * (1 - rho) / ((2**bits - 1) * (1 - gamma))
        return cls(bits, round(2**bits * gamma), low=low, threshold=extent * rho, step=step)

    def forward(self, tokens: Tensor) -> Tensor:
        """The nearest level, in the logarithm below the threshold."""
        factor, code = hybrid_codes(tokens - self.low, self.threshold, self.step, *self.levels)
        return self.low + factor * self.threshold + code * self.step

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """One grid."""
        return {"low": one_of((1,)), "threshold": one_of((1,), low=0), "step": one_of((1,), low=0)}

    @property
    def levels(self) -> tuple[int, int]:
        """(L, U)."""
        return self.log_levels, 2**self.code_bits - self.log_levels

    def bits(self, channels: int) -> float:
        """A fixed grid travels with the model."""
        return float(self.code_bits)

    def settings(self) -> dict[str, Any]:
        """Width and number of logarithmic levels."""
        return {"bits": self.code_bits, "log_levels": self.log_levels}


def hybrid_codes(
    u: Tensor, threshold: Tensor, step: Tensor, log_levels: int, uniform_levels: int
) -> tuple[Tensor, Tensor]:
    """(factor, code) so that u_hat = factor * threshold + code * step."""
    below = u <= threshold
    exponent = nearest(-torch.log2((u / threshold).clamp(_TINY, 1)))
    power = torch.where(exponent >= log_levels, 0.0, torch.exp2(-exponent))
    code = encode_affine(u, threshold, step, uniform_levels)
    return torch.where(below, power, 1.0), torch.where(below, 0.0, code)


class LearnedHybrid(LearnableInput):
    """A hybrid grid whose s_l and s_u are learned: gradients of the levels, codes held fixed, and
    straight through for x inside the range.
    """

    low: Tensor

    def __init__(self, start: HybridLogUniform) -> None:
        super().__init__()
        self.bits, self.log_levels, self._levels = start.code_bits, start.log_levels, start.levels
        self.register_buffer("low", start.low.clone())
        self.threshold = nn.Parameter(start.threshold.clone())
        self.step = nn.Parameter(start.step.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize with the grid as it is now."""
        threshold, step = self.threshold.clamp(min=EPS), self.step.clamp(min=EPS)
        with torch.no_grad():
            u = tokens - self.low
            factor, code = hybrid_codes(u, threshold, step, *self._levels)
            top = threshold + step * (self._levels[1] - 0.5)
            inside = (u >= 0) & (u <= top)
        level = self.low + factor * threshold + code * step
        if not tokens.requires_grad:
            return level
        return level + (tokens - tokens.detach()) * inside

    def frozen(self) -> InputScheme:
        """The grid with what was learned."""
        threshold, step = (p.detach().clamp(min=EPS) for p in (self.threshold, self.step))
        return HybridLogUniform(
            self.bits, self.log_levels, low=self.low, threshold=threshold, step=step
        )
