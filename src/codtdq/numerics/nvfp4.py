"""NVFP4: 4-bit floats in blocks that share an 8-bit float scale; the format's blocks have 16.

A value is E2M1 (sign, 2 exponent bits, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6), the scale of a
block E4M3 (largest 448), and one float32 scale t = absmax / (448 * 6) brings a tensor into the
range of both. x_hat = t * scale * value with scale = E4M3(absmax_block / (6 t)). All roundings go
to the nearest, ties to the even mantissa, and saturate.

Blocks are counted from the end of the last dimension: where its length is no multiple of the block
the first one is short, so that the last n blocks of values always are whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.numerics.affine import nearest

BLOCK = 16
CODE_BITS, SCALE_BITS = 4, 8
LARGEST_E2M1, LARGEST_E4M3 = 6.0, 448.0
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def round_e2m1(x: Tensor) -> Tensor:
    """The nearest E2M1 value of each element, saturating at 6. NaN stays NaN."""
    size = x.abs().clamp(max=LARGEST_E2M1)
    # spacing of the grid: 0.5 below 2, 1 below 4, 2 above. A multiple that is even there has an
    # even mantissa, so that rounding half to even is the tie rule of the format.
    spacing = 0.5 + 0.5 * (size >= 2) + (size >= 4)
    return torch.copysign(nearest(size / spacing) * spacing, x)


def encode_e2m1(values: Tensor) -> Tensor:
    """Values on the grid -> codes 0..15, uint8: the sign in bit 3, exponent and mantissa below."""
    grid = torch.tensor(_VALUES, device=values.device)
    codes = torch.searchsorted(grid, values.abs().contiguous()).to(torch.uint8)
    return codes | ((values < 0).to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor) -> Tensor:
    """Codes 0..15 -> values, float32."""
    grid = torch.tensor(_VALUES + tuple(-v for v in _VALUES), device=codes.device)
    return grid[codes.long()]


def to_e4m3(x: Tensor) -> Tensor:
    """Scales as float8 E4M3, nearest even, saturating at 448 (a plain cast gives NaN there)."""
    return x.clamp(max=LARGEST_E4M3).to(torch.float8_e4m3fn)


def tensor_scale(absmax: Tensor) -> Tensor:
    """The float32 scale t that puts `absmax` on the largest value of the largest block scale."""
    return absmax.float() / (LARGEST_E4M3 * LARGEST_E2M1)


def block_count(length: int, block: int = BLOCK) -> int:
    """Blocks of a row, the short first one included."""
    return -(-length // block)


def to_blocks(x: Tensor, block: int = BLOCK) -> Tensor:
    """[..., L] -> [..., blocks, block], zeros in front of a short first block."""
    short = -x.shape[-1] % block
    padded = F.pad(x, (short, 0)) if short else x
    return padded.unflatten(-1, (-1, block))


def from_blocks(blocks: Tensor, length: int) -> Tensor:
    """Undo `to_blocks`: [..., L]."""
    flat = blocks.flatten(-2)
    return flat[..., flat.shape[-1] - length :]


def quantize_nvfp4(x: Tensor, t: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """E2M1 values [..., L] and E4M3 block scales [..., blocks] of x [..., L].

    t: tensor scale, broadcast against x [..., 1]. A block whose scale underflows is zero.
    """
    blocks = to_blocks(x, block)
    safe = torch.where(t > 0, t, torch.ones_like(t))
    scales = to_e4m3(blocks.abs().amax(-1) / (LARGEST_E2M1 * safe))
    unit = (scales.float() * t).unsqueeze(-1)
    values = round_e2m1(blocks / torch.where(unit == 0, torch.inf, unit))
    return from_blocks(values, x.shape[-1]), scales


def dequantize_nvfp4(values: Tensor, scales: Tensor, t: Tensor, block: int = BLOCK) -> Tensor:
    """x_hat [..., L] of E2M1 values [..., L], block scales [..., blocks] and the tensor scale."""
    unit = (scales.float() * t).unsqueeze(-1)
    return from_blocks(to_blocks(values, block) * unit, values.shape[-1])


def fake_nvfp4(x: Tensor, t: Tensor, block: int = BLOCK) -> Tensor:
    """Quantize and dequantize x [..., L] with the tensor scale t (broadcast against [..., 1])."""
    values, scales = quantize_nvfp4(x, t, block)
    return dequantize_nvfp4(values, scales, t, block)
