"""Rounding and clamping inside a kernel: the twin of `codtdq.numerics.affine`."""

from __future__ import annotations

import triton
import triton.language as tl

MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves a float32 no fraction bits
EPS = tl.constexpr(1e-8)  # `affine.EPS`
STD_EPS = tl.constexpr(1e-12)  # `affine.STD_EPS`
INF = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))


@triton.jit
def nearest(x):
    """Round half to even, for |x| < 2^22; every value on a grid of 8 bits is."""
    return (x + MAGIC) - MAGIC


@triton.jit
def step_of(radius, QMAX: tl.constexpr):
    """`affine.step_of` for finite radii."""
    return tl.maximum(tl.div_rn(radius, tl.full(radius.shape, QMAX, tl.float32)), EPS)


@triton.jit
def encode(x, radius, step, QMIN: tl.constexpr, QMAX: tl.constexpr):
    """`affine.encode` as float32: clip to +-radius, divide, round half to even, clamp."""
    clipped = tl.minimum(tl.maximum(x, -radius), radius)
    scaled = nearest(tl.div_rn(clipped, step))
    return tl.minimum(tl.maximum(scaled, QMIN * 1.0), QMAX * 1.0)


@triton.jit
def encode_shifted(x, step, zero, QMIN: tl.constexpr, QMAX: tl.constexpr):
    """`affine.encode_shifted` as float32. The quotient is clamped before it is rounded, far outside
    the grid: `nearest` is exact there.
    """
    scaled = tl.div_rn(x, step)
    scaled = tl.minimum(tl.maximum(scaled, -65536.0), 65536.0)
    return tl.minimum(tl.maximum(nearest(scaled) + zero, QMIN * 1.0), QMAX * 1.0)
