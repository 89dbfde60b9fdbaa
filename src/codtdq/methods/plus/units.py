"""The unit of an operator's E4M3 scales, from calibration: nothing has to be read twice for it.

The alternative, a unit for each image, needs the largest step of the image before its first code:
a whole pass, transforms included, and a float32 that travels along. E4M3 numbers reach from 2^-9 to
448, so that a unit with room above what was seen costs no precision; only an image whose steps
exceed that room is clipped.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.methods.plus.grid import TINY, full_step
from codtdq.methods.plus.grouped_input import TokenGroups
from codtdq.methods.plus.transforms import BLOCK, Transform
from codtdq.quantizer.affine import code_limits
from codtdq.quantizer.nvfp4 import LARGEST_E4M3

ROOM = 2.0  # above the largest step that calibration saw


def unit_of(
    scheme: TokenGroups, transform: Transform, rows: Tensor, low: Tensor, high: Tensor
) -> float:
    """A unit under which no step of the calibration images is cut, nor one twice as large.

    rows: sampled tokens [R, C]; low, high: [C], extremes over all tokens. All before the transform.
    """
    levels = code_limits(scheme.code_bits, False)[1]
    plain = Transform(transform.shift, transform.scale, transform.order)
    low, high = plain.tokens(low), plain.tokens(high)
    if scheme.along_pixels:
        step = full_step(low, high, levels, scheme.zero_point)[0]
    else:
        bottom, top = _grouped(low, scheme.group).amin(-1), _grouped(high, scheme.group).amax(-1)
        if transform.hadamard:
            # a spike of a block is spread over it; of what meets there, sampled rows must tell
            spike = torch.maximum(top, -bottom) * (2 / math.sqrt(BLOCK))
            mixed = _grouped(transform.tokens(rows), scheme.group)
            bottom = torch.minimum(mixed.amin(-1).amin(0), -spike)
            top = torch.maximum(mixed.amax(-1).amax(0), spike)
        step = full_step(bottom, top, levels, scheme.zero_point)[0]
    return max(ROOM * float(step.max()) / LARGEST_E4M3, TINY)


def _grouped(x: Tensor, group: int) -> Tensor:
    """[..., C] -> [..., K, g], the last value repeated in a short group."""
    size = max(1, min(group, x.shape[-1]))
    flat = x.reshape(-1, x.shape[-1])
    padded = F.pad(flat, (0, -x.shape[-1] % size), mode="replicate")
    return padded.reshape(*x.shape[:-1], -1, size)
