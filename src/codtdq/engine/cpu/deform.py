"""Deformable 3x3 convolutions in float32: sampled and multiplied a few hundred tokens at a time.

The samples of a whole map are nine times its size; a block of them stays in the cache.
"""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Deform
from codtdq.engine.cpu.products import extent

POINTS = 9
BLOCK = 512  # tokens


def deform_conv(x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Output [B, O, H, W] of x [B, C, H, W], offsets [B, 18, H, W] as (dy, dx), weight [9 * C, O].

    The rows of the weight run over the nine points, channels innermost; the result is
    channels-last in memory.
    """
    batch, channels, height, width = x.shape
    maps = x.permute(0, 2, 3, 1).contiguous()
    sizes = (batch, height, width, channels)
    shape = Deform(*sizes, *offsets.stride(), maps.numel(), extent(offsets))
    tokens, threads, engine = batch * height * width, torch.get_num_threads(), library.engine()
    y = x.new_empty(tokens, weight.shape[1])
    rows = x.new_empty(min(BLOCK, tokens), POINTS * channels)
    for first in range(0, tokens, BLOCK):
        count = min(BLOCK, tokens - first)
        library.check(
            engine.cod_deform_rows(
                maps.data_ptr(),
                offsets.data_ptr(),
                byref(shape),
                first,
                count,
                rows.data_ptr(),
                rows.numel(),
                threads,
            )
        )
        torch.addmm(bias, rows[:count], weight, out=y[first : first + count])
    return y.view(batch, height, width, -1).permute(0, 3, 1, 2)
