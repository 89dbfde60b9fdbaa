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


def decode_affine(codes: Tensor, low: Tensor, step: Tensor) -> Tensor:
    """Values of unsigned codes: low + step * code."""
    return low + codes * step


def nearest(x: Tensor) -> Tensor:
    """Round half to even: for codes that are no plain grid (exponents, table indices)."""
    return torch.round(x)


def code_limits(bits: int, symmetric: bool) -> tuple[int, int]:
    """Smallest and largest code: signed around zero, or 0 .. 2^bits - 1 with a zero-point."""
    return (qmin_of(bits), qmax_of(bits)) if symmetric else (0, 2**bits - 1)


def encode_shifted(x: Tensor, step: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """Codes clip(round(x / step) + zero, low, high), as floats; step and zero broadcast."""
    return torch.round(x / step).add_(zero).clamp_(low, high)


def decode_shifted(codes: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    """Values step * (code - zero)."""
    return (codes - zero) * step


def fake_shifted(x: Tensor, step: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """Quantize and dequantize on a grid with a zero-point."""
    return decode_shifted(encode_shifted(x, step, zero, low, high), step, zero)


def grid_of(low: Tensor, high: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """(step, zero) of the grid that spans [low, high]; zero is always a level.

    Symmetric: the larger magnitude sits on the largest code and zero is 0. A constant input, for
    which the range is empty, gets the smallest step.
    """
    if symmetric:
        step = step_of(torch.maximum(low.abs(), high.abs()), bits)
        return step, torch.zeros_like(step)
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    step = ((high - low) / (2**bits - 1)).clamp(min=EPS)
    return step, torch.round(-low / step).clamp(0, 2**bits - 1)


def floor_codes(x: Tensor, step: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """(floor(x / step) + zero, what is left in [0, 1)): the code below x, before any clamping."""
    scaled = x / step
    floors = torch.floor(scaled)
    return floors + zero, scaled - floors


def raise_codes(floors: Tensor, up: Tensor, low: int, high: int) -> Tensor:
    """Codes `floors + up` inside the grid; up is 0 or 1, or between them while it is learned."""
    return (floors + up).clamp_(low, high)


def offset_grid(low: Tensor, high: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """(step, zero) of the grid that spans exactly [low, high], zero inside it or not."""
    if symmetric:
        return grid_of(low, high, bits, symmetric)
    step = ((high - low) / (2**bits - 1)).clamp(min=EPS)
    return step, torch.round(-low / step)
