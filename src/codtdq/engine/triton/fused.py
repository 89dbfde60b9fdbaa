"""A Linear that quantizes its own input: the quantizer as the prologue of the product."""

from __future__ import annotations

import triton
import triton.language as tl

from codtdq.engine.triton.epilogue import finish
from codtdq.engine.triton.grid import NAN, encode, step_of
from codtdq.engine.triton.product import unpack
from codtdq.engine.triton.ranges import all_finite, project


@triton.jit(do_not_specialize=["rows", "channels", "outputs", "slabs"])
def fused_linear(
    x,
    packed,
    scales,
    bias,
    y,
    base_ranks,
    zero_ranks,
    rows,
    channels,
    outputs,
    slabs,
    row_stride,
    channel_stride,
    packed_stride,
    c1,
    c2,
    floor,
    QMIN: tl.constexpr,
    QMAX: tl.constexpr,
    LITERAL: tl.constexpr,
    GUARDED: tl.constexpr,
    HAS_BASE_RANK: tl.constexpr,
    HAS_TAU: tl.constexpr,
    HAS_RATIO: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Output y float32 [rows, outputs] of x float32 [rows, channels]; token groups of 32 channels.

    Arguments as in `quantize_groups` and `product`. Program (i, j): BLOCK_M rows, BLOCK_N outputs.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, 32)
    byte = tl.arange(0, 16)
    start = x + row.to(tl.int64)[:, None] * row_stride
    at_weights = packed + column.to(tl.int64)[:, None] * packed_stride + byte[None, :]
    result = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for slab in range(0, slabs):
        channel = slab * 32 + lane
        real = (row < rows)[:, None] & (channel < channels)[None, :]
        values = tl.load(start + channel[None, :] * channel_stride, mask=real, other=0.0)
        if LITERAL:
            counted = tl.full(values.shape, 1, tl.int1)
            count = tl.full((BLOCK_M,), 32, tl.int32)
        else:
            counted = tl.broadcast_to((channel < channels)[None, :], values.shape)
            count = tl.full((BLOCK_M,), 0, tl.int32) + tl.minimum(32, channels - slab * 32)
        radius = project(
            values,
            counted,
            count,
            base_ranks,
            zero_ranks,
            c1,
            c2,
            floor,
            QMIN,
            QMAX,
            LITERAL,
            GUARDED,
            HAS_BASE_RANK,
            HAS_TAU,
            HAS_RATIO,
        )
        finite = all_finite(values)
        step = step_of(radius, QMAX)
        encoded = encode(values, radius[:, None], step[:, None], QMIN, QMAX)
        a = tl.where(finite[:, None], encoded, 0.0).to(tl.int8)
        nibbles = tl.load(at_weights + slab * 16, mask=(column < outputs)[:, None], other=0)
        part = tl.dot(a, tl.trans(unpack(nibbles)), out_dtype=tl.int32)
        scaled = part.to(tl.float32) * tl.where(finite, step, NAN)[:, None]
        if WEIGHT_GROUPS:
            line = slab * outputs + column
            scaled *= tl.load(scales + line, mask=column < outputs, other=0.0)[None, :]
        result += scaled
    if not WEIGHT_GROUPS:
        result *= tl.load(scales + column, mask=column < outputs, other=0.0)[None, :]
    result = finish(result, bias, column, outputs, ACTIVATION)
    at = row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(y + at, result, mask=(row < rows)[:, None] & (column < outputs)[None, :])
