"""Linear and dense convolutions of carriers: an implicit GEMM, one int8 sum over everything.

Carriers and weights are signed bytes whatever the groups were; weights lie in memory as nibbles
with a multiplier for every 32 channels of a tap (a slab), or as bytes.
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
        "unit_rows",
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
    ]
)
def product(
    data,
    unit,
    packed,
    multiplier,
    factor,
    bias,
    y,
    rows,
    outputs,
    taps,
    slabs,
    unit_rows,
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
    BYTES: tl.constexpr,
    WINDOW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SLABS: tl.constexpr,
):
    """Output y [rows, outputs] = float(sum of carriers times whole weights) (u v) + bias.

    data int8 [tokens, slabs * 32]; unit float32, one for `unit_rows` tokens: an image, or 1;
    packed uint8 [outputs, taps * slabs * 16], or int8 [outputs, taps * slabs * 32] (BYTES);
    multiplier int8 [taps * slabs, outputs] or None; factor float32 [outputs]. SLABS slabs at a
    time. WINDOW: taps at their distances inside maps [in_h, in_w]; else one tap, token = row.
    """
    row, column = tile(rows, outputs, BLOCK_M, BLOCK_N)
    k = tl.arange(0, 32 * SLABS)
    live = (column < outputs)[:, None]
    width: tl.constexpr = 32 if BYTES else 16  # bytes of a slab
    at = tl.arange(0, width * SLABS)
    inside = row < rows
    token = row.to(tl.int64)
    first = token
    if WINDOW:
        image = row // (out_h * out_w)
        top = (row // out_w) % out_h * stride_h - pad_h
        left = row % out_w * stride_w - pad_w
        # a unit of its own has only what a single tap reads, without padding
        first = image.to(tl.int64) * in_h * in_w
        if unit_rows == 1:
            first = (image.to(tl.int64) * in_h + top) * in_w + left
    line = packed + column.to(tl.int64)[:, None] * (taps * slabs * width) + at[None, :]
    rounds = tl.cdiv(slabs, SLABS)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for i in range(0, taps * rounds):
        tap = i // rounds
        slab = (i - tap * rounds) * SLABS
        if WINDOW:
            high = top + (tap // kernel_w) * gap_h
            across = left + (tap % kernel_w) * gap_w
            inside = (row < rows) & (high >= 0) & (high < in_h) & (across >= 0) & (across < in_w)
            token = (image.to(tl.int64) * in_h + high) * in_w + across
        known = inside[:, None] & (slab * 32 + k < slabs * 32)[None, :]
        a = tl.load(data + token[:, None] * (slabs * 32) + slab * 32 + k[None, :], known, other=0)
        fed = live & (slab * width + at < slabs * width)[None, :]
        w = tl.load(line + (tap * slabs + slab) * width, mask=fed, other=0)
        if not BYTES:
            w = unpack(w)
            if multiplier is not None:
                place = (tap * slabs + slab + k // 32)[None, :] * outputs + column[:, None]
                there = live & (slab + k // 32 < slabs)[None, :]
                w = w * tl.load(multiplier + place, mask=there, other=0)
        total = tl.dot(a, tl.trans(w), total, out_dtype=tl.int32)
    u = tl.load(unit + first // unit_rows, mask=row < rows, other=0.0)
    v = tl.load(factor + column, mask=column < outputs, other=0.0)
    result = total.to(tl.float32) * (u[:, None] * v[None, :])
    result = finish(result, bias, column, outputs, ACTIVATION)
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(y + place, result, mask=(row < rows)[:, None] & (column < outputs)[None, :])
