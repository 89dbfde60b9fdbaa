"""Depthwise convolution on codes: one channel at a time, so there is no matrix product in it."""

from __future__ import annotations

import triton
import triton.language as tl

from codtdq.engine.triton.epilogue import finish


@triton.jit(
    do_not_specialize=[
        "rows",
        "channels",
        "taps",
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
def depthwise(
    codes,
    step,
    zero,
    weight,
    bias,
    y,
    rows,
    channels,
    taps,
    code_stride,
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
    GROUPED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Output y float32 [rows, channels] of codes [tokens, code_stride], taps [taps, channels].

    GROUPED: steps (and zero-points) of token groups, read with the codes; else the steps are in the
    taps, and zero, if any, is one number.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = row // (out_h * out_w)
    top = (row // out_w) % out_h * stride_h - pad_h
    left = row % out_w * stride_w - pad_w
    group = channel // GROUP
    result = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tap in range(0, taps):
        high = top + (tap // kernel_w) * gap_h
        across = left + (tap % kernel_w) * gap_w
        inside = (row < rows) & (high >= 0) & (high < in_h) & (across >= 0) & (across < in_w)
        token = (image.to(tl.int64) * in_h + high) * in_w + across
        known = inside[:, None] & (channel < channels)[None, :]
        q = tl.load(codes + token[:, None] * code_stride + channel[None, :], mask=known, other=0)
        value = q.to(tl.float32)
        at = token[:, None] * step_row + group[None, :] * step_group
        if zero is not None:
            value -= tl.load(zero + at, mask=known, other=0).to(tl.float32)
        if GROUPED:
            value *= tl.load(step + at, mask=known, other=0.0)
        w = tl.load(weight + tap * channels + channel, mask=channel < channels, other=0.0)
        # a NaN step in the taps meets a padded pixel as 0: its absence is no number
        result += tl.where(known, value * w[None, :], 0.0)
    result = finish(result, bias, channel, channels, ACTIVATION)
    at = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(y + at, result, mask=(row < rows)[:, None] & (channel < channels)[None, :])
