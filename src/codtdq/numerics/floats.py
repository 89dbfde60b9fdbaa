"""Compact storage of the parameters that stay in floating point (norms, biases, embeddings).

Blocks of 64 values share a float32 minimum and a float32 step and keep 8-bit codes: 9 bits a
value, an error of at most 1/510 of the block's own span. Arithmetic stays float32; only the
stored values are rounded, at conversion, so that what runs is exactly what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.numerics.affine import encode_affine

BLOCK = 64
LEVELS = 256


@dataclass(frozen=True)
class BlockFloats:
    """A float tensor in 8-bit blocks."""

    codes: Tensor  # uint8 [numel]
    low: Tensor  # float32 [blocks]
    step: Tensor  # float32 [blocks]
    shape: torch.Size

    def decode(self) -> Tensor:
        """The stored values, float32."""
        count = self.codes.numel()
        index = torch.arange(count, device=self.codes.device) // BLOCK
        values = self.low[index] + self.step[index] * self.codes.float()
        return values.reshape(self.shape)


def encode_floats(x: Tensor) -> BlockFloats | None:
    """Encode a float tensor; None where NaN, infinity or an extreme span forbid it."""
    flat = x.detach().float().flatten()
    if not bool(flat.isfinite().all()):
        return None
    short = -flat.numel() % BLOCK
    padded = torch.cat((flat, flat[-1:].expand(short))).reshape(-1, BLOCK)  # repeats add no span
    low, high = padded.amin(-1), padded.amax(-1)
    step = (high - low) / (LEVELS - 1)
    if not bool(step.isfinite().all()):
        return None  # the span of a block is beyond float32
    safe = torch.where(step > 0, step, torch.ones_like(step))
    codes = encode_affine(padded, low.unsqueeze(-1), safe.unsqueeze(-1), LEVELS)
    return BlockFloats(codes.flatten()[: flat.numel()].to(torch.uint8), low, step, x.shape)
