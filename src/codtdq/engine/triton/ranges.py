"""Ranges of token groups inside a kernel: the twin of `codtdq.numerics.projection`.

A tile holds groups as rows: x [R, LANES] float32, zero outside the group, and `valid` [R, LANES],
the elements that take part in statistics. A group that holds a NaN or an infinity is marked
afterwards, whatever came out here.

One thing differs from the reference: deviations and squared errors are summed in float32, where the
reference sums in float64. A bound may then differ in its last bits, and of two radii whose errors
tie to 1e-6 the other one may be taken.
"""

from __future__ import annotations

import triton
import triton.language as tl

from codtdq.engine.triton.grid import EPS, INF, STD_EPS, encode, nearest, step_of


@triton.jit
def all_finite(x):
    """Whether a group holds no NaN and no infinity: [R]."""
    return tl.sum((tl.abs(x) < INF).to(tl.int32), 1) == x.shape[1]


@triton.jit
def group_std(x, valid, count):
    """Standard deviation [R] (unbiased=False, plus 1e-12) about the mean, in two passes.

    The first element is taken off first: a constant group has a deviation of exactly 0.
    """
    lane = tl.arange(0, x.shape[1])[None, :]
    first = tl.sum(tl.where(lane == 0, x, 0.0), 1)
    shifted = tl.where(valid, x - first[:, None], 0.0)
    total = count.to(tl.float32)
    mean = tl.div_rn(tl.sum(shifted, 1), total)
    centred = tl.where(valid, shifted - mean[:, None], 0.0)
    return tl.sqrt_rn(tl.div_rn(tl.sum(centred * centred, 1), total)) + STD_EPS


@triton.jit
def kth_smallest(magnitude, rank):
    """The rank-th smallest (1-based) of each row of non-negative values: [R, LANES], [R] -> [R].

    Such floats are ordered like their bits. The result is built from the highest bit down: a bit is
    set if fewer than `rank` values lie below. No row has to be ordered, and nothing is moved.
    """
    bits = magnitude.to(tl.int32, bitcast=True)
    found = tl.zeros_like(rank)
    for i in range(0, 31):
        trial = found | (1 << (30 - i))
        below = tl.sum((bits < trial[:, None]).to(tl.int32), 1)
        found = tl.where(below < rank, trial, found)
    return found.to(tl.float32, bitcast=True)


@triton.jit
def squared_error(x, radius, QMIN: tl.constexpr, QMAX: tl.constexpr):
    """What quantization under a radius [R] costs each group: [R]."""
    step = step_of(radius, QMAX)[:, None]
    error = x - encode(x, radius[:, None], step, QMIN, QMAX) * step
    return tl.sum(error * error, 1)


@triton.jit
def guard(x, base, bounded, QMIN: tl.constexpr, QMAX: tl.constexpr):
    """Of five radii from the bound back to the base, the one with the least squared error."""
    best = tl.maximum(bounded, EPS)
    least = squared_error(x, best, QMIN, QMAX)
    for i in tl.static_range(1, 5):
        radius = base if i == 4 else base + (1.0 - 0.25 * i) * (bounded - base)
        radius = tl.maximum(radius, EPS)
        cost = squared_error(x, radius, QMIN, QMAX)
        best = tl.where(cost < least, radius, best)
        least = tl.minimum(cost, least)
    return tl.where(bounded < base, best, bounded)


@triton.jit
def project(
    x,
    valid,
    count,
    base_ranks,
    zero_ranks,
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
):
    """Radius [R] of each group under its bounds (Eq. dcrp), at least 1e-8.

    base_ranks, zero_ranks: rank of the quantile by the number of elements, int32 [GROUP + 1].
    c1: q_max tau; c2: 2 q_max, less the tie margin; floor: q_max 1e-8.
    """
    magnitude = tl.abs(x)
    base = tl.max(magnitude, 1)
    if HAS_BASE_RANK or HAS_RATIO:
        counted = tl.where(valid, magnitude, INF)
    if HAS_BASE_RANK:
        base = kth_smallest(counted, tl.load(base_ranks + count))
    radius = base
    if HAS_TAU:
        bound = group_std(x, valid, count) * c1
        if LITERAL:
            radius = tl.minimum(radius, bound)
        else:  # a bound that no radius can meet is dropped
            radius = tl.where(bound >= floor, tl.minimum(radius, bound), radius)
    if HAS_RATIO:
        if LITERAL:
            radius = tl.minimum(radius, kth_smallest(counted, tl.load(zero_ranks + count)) * c2)
        else:  # exact zeros come first in the order; they are no evidence
            evidence = tl.sum((valid & (x != 0)).to(tl.int32), 1)
            rank = tl.load(zero_ranks + evidence) + count - evidence
            bound = kth_smallest(counted, rank) * c2
            taken = (evidence > 0) & (bound >= floor)
            radius = tl.where(taken, tl.minimum(radius, bound), radius)
    if GUARDED:
        radius = guard(x, base, radius, QMIN, QMAX)
    return tl.maximum(radius, EPS)


@triton.jit
def min_max(x, QMIN: tl.constexpr, QMAX: tl.constexpr):
    """(step, zero) [R] of `affine.grid_of` with a zero-point, shifted onto signed codes.

    Lanes outside the group are 0, which every range holds anyway.
    """
    low, high = tl.minimum(tl.min(x, 1), 0.0), tl.maximum(tl.max(x, 1), 0.0)
    levels = tl.full(low.shape, QMAX - QMIN, tl.float32)
    step = tl.maximum(tl.div_rn(high - low, levels), EPS)
    zero = tl.minimum(tl.maximum(nearest(tl.div_rn(-low, step)), 0.0), levels)
    return step, zero + QMIN
