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

from codtdq.numerics.affine import code_limits
from codtdq.numerics.nvfp4 import LARGEST_E4M3
from codtdq.schemes.group_grid import TINY, full_step
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import BLOCK, Transform

ROOM = 2.0  # above the largest step that calibration saw


def unit_of(
    scheme: TokenGroups, transform: Transform, rows: Tensor, low: Tensor, high: Tensor
) -> float:
    """A unit under which twice the largest step of the calibration images is still a scale.

    Exact but for rotated blocks, where sampled rows and single spikes tell. 0.0, which stands for
    the images' own units, where all inputs were zero.

    rows: sampled tokens [R, C]; low, high: [C], extremes over all tokens. All before the transform.
    """
    levels = code_limits(scheme.code_bits, False)[1]
    plain = Transform(transform.shift, transform.scale, transform.order)
    low, high = plain.tokens(low), plain.tokens(high)
    if transform.hadamard:
        low, high = _rotated(low, high, transform.tokens(rows))
    if not scheme.along_pixels:
        low, high = _grouped(low, scheme.group).amin(-1), _grouped(high, scheme.group).amax(-1)
    step = float(full_step(low, high, levels, scheme.zero_point)[0].max())
    return max(ROOM * step / LARGEST_E4M3, TINY) if step > 0 else 0.0


def _rotated(low: Tensor, high: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Extremes [C] behind the rotation of whole blocks: of rotated rows [R, C], and of a spike,
    which is spread over its block.
    """
    whole = low.shape[0] // BLOCK * BLOCK
    spike = torch.maximum(high, -low)[:whole].unflatten(0, (-1, BLOCK)).amax(1)
    spike = (spike * (2 / math.sqrt(BLOCK))).repeat_interleave(BLOCK)
    seen = rows[:, :whole]
    return (
        torch.cat((torch.minimum(seen.amin(0), -spike), low[whole:])),
        torch.cat((torch.maximum(seen.amax(0), spike), high[whole:])),
    )


def _grouped(x: Tensor, group: int) -> Tensor:
    """[..., C] -> [..., K, g], the last value repeated in a short group."""
    size = max(1, min(group, x.shape[-1]))
    flat = x.reshape(-1, x.shape[-1])
    padded = F.pad(flat, (0, -x.shape[-1] % size), mode="replicate")
    return padded.reshape(*x.shape[:-1], -1, size)
