"""Linear and dense convolutions on codes: an implicit GEMM with 4-bit weights.

One int8 tensor-core product for 32 channels of a tap (a slab), which is one token group of the
paper's setting; its integers are scaled into a float sum. Where all tokens share one step, integers
are summed to the end and scaled once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from codtdq.engine.triton.epilogue import finish


@triton.jit
def unpack(packed):
    """Nibbles [N, B] -> int8 codes [N, 2B], in the order of `codtdq.numerics.packing`."""
    low = ((packed << 4).to(tl.int8, bitcast=True)) >> 4
    high = packed.to(tl.int8, bitcast=True) >> 4
    return tl.interleave(low, high)


@triton.jit
def tile(rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows [BLOCK_M] and columns [BLOCK_N] of this program; neighbours share weights in L2."""
    across = tl.cdiv(columns, BLOCK_N)
    down = tl.cdiv(rows, BLOCK_M)
    program = tl.program_id(0)
    band = program // (8 * across)
    height = tl.minimum(down - band * 8, 8)
    m = band * 8 + (program % (8 * across)) % height
    n = (program % (8 * across)) // height
    return m * BLOCK_M + tl.arange(0, BLOCK_M), n * BLOCK_N + tl.arange(0, BLOCK_N)


@triton.jit(
    do_not_specialize=[
        "rows",
        "outputs",
        "taps",
        "slabs",
        "in_h",
        "in_w",
        "out_h",
        "out_w",
        "kernel_w",
        "stride_h",
        "stride_w",
        "pad_h",
        "pad_w",
        "gap_h",
        "gap_w",
        "step_row",
        "step_group",
    ]
)
def product(
    codes,
    step,
    zero,
    packed,
    scales,
    weight_sums,
    bias,
    y,
    rows,
    outputs,
    taps,
    slabs,
    code_stride,
    packed_stride,
    step_row,
    step_group,
    in_h,
    in_w,
    out_h,
    out_w,
    kernel_w,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    gap_h,
    gap_w,
    GROUP: tl.constexpr,
    SHARED_STEP: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    WINDOW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SLABS: tl.constexpr,
):
    """Output y [rows, outputs] = sum_g s_x s_w (sum q_x q_w - z_x sum q_w) + bias.

    codes int8 [tokens, code_stride]; step float32 and zero int32 (or None) at token * step_row +
    group * step_group; packed uint8 [outputs, taps * slabs * 16]; scales float32 [1, outputs] or
    [taps * slabs, outputs]; weight_sums int32 [taps * slabs, outputs], with a zero-point only.
    GROUP: channels of a token group: less than 32, in a slab of its own, or a multiple of 32.
    SHARED_STEP: step [1], one weight scale per output, no zero-point: SLABS slabs at a time.
    WINDOW: taps at their distances inside maps [in_h, in_w]; else one tap, token = row.
    """
    row, column = tile(rows, outputs, BLOCK_M, BLOCK_N)
    width: tl.constexpr = GROUP if GROUP < 32 else 32  # stored codes of a slab
    k = tl.arange(0, 32 * SLABS)
    byte = tl.arange(0, 16 * SLABS)
    live = (column < outputs)[:, None]
    at_weights = packed + column.to(tl.int64)[:, None] * packed_stride + byte[None, :]
    inside = row < rows
    token = row.to(tl.int64)
    if WINDOW:
        image = row // (out_h * out_w)
        top = (row // out_w) % out_h * stride_h - pad_h
        left = row % out_w * stride_w - pad_w
    rounds = tl.cdiv(slabs, SLABS)
    if SHARED_STEP:
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    else:
        result = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(0, taps * rounds):
        tap = i // rounds
        slab = (i - tap * rounds) * SLABS
        if WINDOW:
            high = top + (tap // kernel_w) * gap_h
            across = left + (tap % kernel_w) * gap_w
            inside = (row < rows) & (high >= 0) & (high < in_h) & (across >= 0) & (across < in_w)
            token = (image.to(tl.int64) * in_h + high) * in_w + across
        at_codes = codes + token[:, None] * code_stride + slab * width + k[None, :]
        known = inside[:, None]
        if width < 32:
            known = known & (k < width)[None, :]
        if SLABS > 1:
            known = known & (slab * 32 + k < slabs * 32)[None, :]
        a = tl.load(at_codes, mask=known, other=0)
        fed = live
        if SLABS > 1:
            fed = live & (slab * 16 + byte < slabs * 16)[None, :]
        nibbles = tl.load(at_weights + (tap * slabs + slab) * 16, mask=fed, other=0)
        b = tl.trans(unpack(nibbles))
        if SHARED_STEP:
            total = tl.dot(a, b, total, out_dtype=tl.int32)
        else:
            part = tl.dot(a, b, out_dtype=tl.int32)
            group = slab // (GROUP // width)
            at = token * step_row + group * step_group
            line = (tap * slabs + slab) * outputs + column
            if zero is not None:
                shift = tl.load(zero + at, mask=inside, other=0)
                weights = tl.load(weight_sums + line, mask=column < outputs, other=0)
                part -= shift[:, None] * weights[None, :]
            size = tl.load(step + at, mask=inside, other=0.0)
            scaled = part.to(tl.float32) * size[:, None]
            if WEIGHT_GROUPS:
                scaled *= tl.load(scales + line, mask=column < outputs, other=0.0)[None, :]
            result += scaled
    if SHARED_STEP:
        result = total.to(tl.float32) * tl.load(step)
    if not WEIGHT_GROUPS:
        result *= tl.load(scales + column, mask=column < outputs, other=0.0)[None, :]
    result = finish(result, bias, column, outputs, ACTIVATION)
    at = row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(y + at, result, mask=(row < rows)[:, None] & (column < outputs)[None, :])
