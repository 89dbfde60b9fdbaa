"""The activation quantizer as one kernel: DSTG's groups, DCRP's ranges, codes and steps.

Reads a tensor once, in whatever layout its tokens have, and writes int8 codes in token order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from codtdq.engine.triton.grid import EPS, INF, NAN, encode, encode_shifted, step_of
from codtdq.engine.triton.ranges import all_finite, min_max, project

PROJECT, MIN_MAX, GIVEN = 0, 1, 2  # where a group's range comes from


@triton.jit
def _place(row, positions, image_stride, token_stride):
    """Where the tokens of these rows begin."""
    image, position = row // positions, row % positions
    return image.to(tl.int64) * image_stride + position.to(tl.int64) * token_stride


@triton.jit(do_not_specialize=["rows", "channels", "positions", "groups"])
def quantize_groups(
    x,
    codes,
    step,
    zero,
    sums,
    base_ranks,
    zero_ranks,
    rows,
    channels,
    positions,
    image_stride,
    token_stride,
    channel_stride,
    code_stride,
    groups,
    c1,
    c2,
    floor,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    QMIN: tl.constexpr,
    QMAX: tl.constexpr,
    RANGE: tl.constexpr,
    LITERAL: tl.constexpr,
    GUARDED: tl.constexpr,
    HAS_BASE_RANK: tl.constexpr,
    HAS_TAU: tl.constexpr,
    HAS_RATIO: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Codes int8 [rows, K GROUP], steps [rows, K] and, on request, zero-points and sums [rows, K].

    A program takes BLOCK token groups that lie next to each other in x: of one token after the
    other where channels come last, else of one channel group after the other. Tokens lie image by
    image, `positions` in each.
    RANGE: PROJECT, the bounds of `project`; MIN_MAX, a zero-point from the group's extremes; GIVEN,
    step and zero are read.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if CHANNELS_LAST:
        row, group = index // groups, index % groups
    else:
        row, group = index % rows, index // rows
    inside = (row < rows) & (group < groups)
    lane = tl.arange(0, LANES)[None, :]
    channel = group[:, None] * GROUP + lane
    known = (lane < GROUP) & (channel < channels)
    start = _place(row, positions, image_stride, token_stride)
    at = start[:, None] + channel * channel_stride
    values = tl.load(x + at, mask=inside[:, None] & known, other=0.0)
    finite = all_finite(values)
    place = row.to(tl.int64) * groups + group
    if RANGE == 0:
        if LITERAL:  # padding counts
            counted = tl.broadcast_to(lane < GROUP, values.shape)
            count = tl.full((BLOCK,), GROUP, tl.int32)
        else:
            counted = known
            count = tl.maximum(tl.minimum(GROUP, channels - group * GROUP), 1)
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
        found = step_of(radius, QMAX)
        encoded = encode(values, radius[:, None], found[:, None], QMIN, QMAX)
    else:
        if RANGE == 1:
            found, shift = min_max(values, QMIN, QMAX)
        else:
            found = tl.load(step + place, mask=inside, other=1.0)
            shift = tl.load(zero + place, mask=inside, other=0).to(tl.float32)
        shift = tl.where(finite, shift, 0.0)
        encoded = encode_shifted(values, found[:, None], shift[:, None], QMIN, QMAX)
        # a padded channel must not count: its code is the zero-point
        encoded = tl.where(known, encoded, shift[:, None])
    # a group without a range has codes 0 under a step that is NaN
    q = tl.where(finite[:, None], encoded, 0.0).to(tl.int8)
    at = row.to(tl.int64)[:, None] * code_stride + channel
    tl.store(codes + at, q, mask=inside[:, None] & (lane < GROUP))
    tl.store(step + place, tl.where(finite, found, NAN), mask=inside)
    if RANGE == 1:
        tl.store(zero + place, shift.to(tl.int32), mask=inside)
    if sums is not None:
        tl.store(sums + place, tl.sum(q.to(tl.int32), 1), mask=inside)


@triton.jit(do_not_specialize=["rows", "channels", "positions"])
def largest_magnitude(
    x,
    largest,
    rows,
    channels,
    positions,
    image_stride,
    token_stride,
    channel_stride,
    PER_CHANNEL: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Bits of the largest |x| in `largest` int32 [1] or [C], which holds zeros before.

    Magnitudes are ordered like their bits, with infinity and then NaN above all numbers.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * LANES + tl.arange(0, LANES)
    real = (row < rows)[:, None] & (channel < channels)[None, :]
    start = _place(row, positions, image_stride, token_stride)
    values = tl.load(x + start[:, None] + channel[None, :] * channel_stride, mask=real, other=0.0)
    most = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    if PER_CHANNEL:
        tl.atomic_max(largest + channel, most, mask=channel < channels)
    else:
        tl.atomic_max(largest, tl.max(most, 0))


@triton.jit(do_not_specialize=["rows", "channels", "positions"])
def quantize_fixed(
    x,
    codes,
    radius,
    step,
    largest,
    found,
    rows,
    channels,
    positions,
    image_stride,
    token_stride,
    channel_stride,
    code_stride,
    QMIN: tl.constexpr,
    QMAX: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Codes int8 [rows, code_stride] under ranges that tokens share, [1] or [C]; padding is 0.

    The range is given (radius, step), or `largest` has the bits of the radius. Steps go to `found`,
    if anybody wants them, NaN where the input is not finite; given ones must be there already.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * LANES + tl.arange(0, LANES)
    known = channel < channels
    real = (row < rows)[:, None] & known[None, :]
    start = _place(row, positions, image_stride, token_stride)
    values = tl.load(x + start[:, None] + channel[None, :] * channel_stride, mask=real, other=0.0)
    index = channel if PER_CHANNEL else channel * 0
    if largest is not None:
        limit = tl.load(largest + index, mask=known, other=0).to(tl.float32, bitcast=True)
        finite = limit < INF
        size = tl.where(finite, step_of(tl.maximum(limit, EPS), QMAX), NAN)
        limit = tl.where(finite, tl.maximum(limit, EPS), NAN)
        if tl.program_id(0) == 0:
            tl.store(found + index, size, mask=known if PER_CHANNEL else channel == 0)
    else:
        limit = tl.load(radius + index, mask=known, other=1.0)
        size = tl.load(step + index, mask=known, other=1.0)
        if found is not None:
            wrong = tl.max((tl.abs(values) < INF).to(tl.int32) ^ 1, 0)
            tl.store(found + index, tl.full((LANES,), NAN, tl.float32), mask=wrong != 0)
    limit = tl.broadcast_to(limit[None, :], values.shape)
    size = tl.broadcast_to(size[None, :], values.shape)
    encoded = encode(values, limit, size, QMIN, QMAX)
    # no range, no codes: the step is NaN; nor a code for what is no number
    encoded = tl.where((limit == limit) & (values == values), encoded, 0.0)
    place = row.to(tl.int64)[:, None] * code_stride + channel[None, :]
    stored = (row < rows)[:, None] & (channel < code_stride)[None, :]
    tl.store(codes + place, encoded.to(tl.int8), mask=stored)
