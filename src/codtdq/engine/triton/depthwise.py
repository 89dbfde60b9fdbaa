"""Depthwise convolution of carriers: one channel at a time, there is no matrix product in it."""

from __future__ import annotations

import triton
import triton.language as tl

from codtdq.engine.triton.epilogue import finish


@triton.jit(
    do_not_specialize=[
        "rows",
        "channels",
        "taps",
        "unit_stride",
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
def depthwise(
    data,
    unit,
    weight,
    factor,
    bias,
    y,
    rows,
    channels,
    taps,
    stride,
    unit_stride,
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
    OWN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Output y float32 [rows, channels] of data int8 [tokens, stride], weight [taps, channels].

    unit: float32 of each image, [images], or (OWN) of each of its channels, [images, unit_stride].
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = row // (out_h * out_w)
    top = (row // out_w) % out_h * stride_h - pad_h
    left = row % out_w * stride_w - pad_w
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for tap in range(0, taps):
        high = top + (tap // kernel_w) * gap_h
        across = left + (tap % kernel_w) * gap_w
        inside = (row < rows) & (high >= 0) & (high < in_h) & (across >= 0) & (across < in_w)
        token = (image.to(tl.int64) * in_h + high) * in_w + across
        known = inside[:, None] & (channel < channels)[None, :]
        a = tl.load(data + token[:, None] * stride + channel[None, :], mask=known, other=0)
        w = tl.load(weight + tap * channels + channel, mask=channel < channels, other=0)
        total += a.to(tl.int32) * w.to(tl.int32)[None, :]
    place = image[:, None] * unit_stride + channel[None, :] * 0
    if OWN:
        place += channel[None, :]
    there = (row < rows)[:, None] & (channel < channels)[None, :]
    u = tl.load(unit + place, mask=there, other=0.0)
    v = tl.load(factor + channel, mask=channel < channels, other=0.0)
    result = total.to(tl.float32) * (u * v[None, :])
    result = finish(result, bias, channel, channels, ACTIVATION)
    at = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(y + at, result, mask=there)
