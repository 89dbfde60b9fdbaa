"""The only Python in the package that rounds and clamps values onto an integer grid.

Signed symmetric uniform quantization with `bits` in 2..8 (paper Eqs. clipx, dequant; S4.8):
q_min = -2^(bits-1), q_max = 2^(bits-1) - 1, step = max(radius / q_max, 1e-8).
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-8  # floor of every radius and every step (S4.8)
STD_EPS = 1e-12  # added to every group standard deviation (S4.8)
MIN_BITS, MAX_BITS = 2, 8


def qmin_of(bits: int) -> int:
    """Smallest code of a signed grid."""
    return -(2 ** (bits - 1))


def qmax_of(bits: int) -> int:
    """Largest code of a signed grid; the radius is mapped onto it."""
    return 2 ** (bits - 1) - 1


def step_of(radius: Tensor, bits: int) -> Tensor:
    """Step of the grid whose largest code sits at `radius` (Eq. clipx). NaN stays NaN."""
    return torch.clamp(radius / qmax_of(bits), min=EPS)


def encode(x: Tensor, radius: Tensor, step: Tensor, bits: int) -> Tensor:
    """Codes of x on the grid: clip to +-radius, divide, round half to even, clamp (Eq. dequant).

    x and the result have one shape; radius and step broadcast against it. The codes are returned
    as floats so that a NaN stays visible; `to_codes` turns them into int8.
    """
    scaled = torch.clamp(x, -radius, radius).div_(step)  # a fresh tensor: the rest is in place
    return scaled.round_().clamp_(qmin_of(bits), qmax_of(bits))


def decode(codes: Tensor, step: Tensor) -> Tensor:
    """Values of codes on the grid: x_hat = step * q (Eq. dequant)."""
    return codes * step


def to_codes(encoded: Tensor) -> Tensor:
    """Encoded floats as int8. A NaN has no code: it becomes 0 under a step that is NaN."""
    return torch.nan_to_num(encoded, nan=0.0).to(torch.int8)


def encode_affine(x: Tensor, low: Tensor, step: Tensor, levels: int) -> Tensor:
    """Unsigned codes 0..levels-1 of x on the grid low + step * code."""
    return torch.clamp(torch.round((x - low) / step), 0, levels - 1)
