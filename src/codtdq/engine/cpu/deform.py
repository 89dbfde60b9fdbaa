"""Deformable 3x3 convolutions in float32, whose sums do not depend on the number of threads."""

from __future__ import annotations

from ctypes import byref

from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Deform, Output
from codtdq.engine.cpu.products import extent, float_panels
from codtdq.numerics.threads import wanted_threads

POINTS = 9


def deform_conv(
    x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor, panels: Tensor | None = None
) -> Tensor:
    """Output [B, O, H, W] of x [B, C, H, W], offsets [B, 18, H, W] as (dy, dx), weight [9 * C, O].

    The rows of the weight run over the nine points, channels innermost; the result is
    channels-last in memory. panels: the weight as `float_panels` packs it, where that is at hand.
    """
    batch, channels, height, width = x.shape
    outputs = weight.shape[1]
    maps = x.permute(0, 2, 3, 1).contiguous()
    packed = float_panels(weight) if panels is None else panels
    sizes = (batch, height, width, channels)
    shape = Deform(*sizes, *offsets.stride(), maps.numel(), extent(offsets))
    y = x.new_empty(batch * height * width, outputs)
    out = Output(y.data_ptr(), outputs, bias.data_ptr(), 0, y.numel(), bias.numel())
    library.check(
        library.engine().cod_deform_conv(
            maps.data_ptr(),
            offsets.data_ptr(),
            byref(shape),
            packed.data_ptr(),
            packed.numel(),
            outputs,
            byref(out),
            wanted_threads(),
        )
    )
    return y.view(batch, height, width, outputs).permute(0, 3, 1, 2)
