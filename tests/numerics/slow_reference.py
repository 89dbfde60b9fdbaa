"""An independent, slow implementation of the quantizer: scalar loops, no tensor operation.

float32 arithmetic is done with numpy scalars, so that every intermediate rounds as it should.
"""

from __future__ import annotations

import math

import numpy as np

F = np.float32


def quantize_group(
    values, *, bits=4, tau=1.0, zr=0.2, percentile=None, literal=False, padded=0, guarded=False
):
    """One group, its last `padded` entries being padding. Returns radius, step, codes, active."""
    qmax, qmin = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    values = [F(v) for v in values]
    real = values if literal else values[: len(values) - padded]
    magnitudes = sorted(abs(v) for v in real)
    base = magnitudes[-1] if percentile is None else magnitudes[_rank(percentile, len(real)) - 1]
    radius, active = base, "BASE"
    floor = F(qmax * 1e-8)
    if tau is not None:
        mean = math.fsum(float(v) for v in real) / len(real)
        variance = math.fsum((float(v) - mean) ** 2 for v in real) / len(real)
        sigma = F(math.sqrt(variance) + 1e-12)
        bound = F(F(qmax * tau) * sigma)
        if (literal or bound >= floor) and bound < radius:
            radius, active = bound, "C1"
    if zr is not None:
        if literal:
            bound = F(F(2 * qmax) * magnitudes[_rank(zr, len(real)) - 1])
            usable = True
        else:
            nonzero = [m for m in magnitudes if m != 0]
            usable = bool(nonzero)
            if usable:
                bound = F(nonzero[_rank(zr, len(nonzero)) - 1] * F(2 * qmax * (1 - 2.0**-20)))
                usable = bound >= floor
        if usable and bound < radius:
            radius, active = bound, "C2"
    if guarded and radius < base:
        radius, active = _guard(values, base, radius, active, bits)
    radius = max(radius, F(1e-8))
    step, codes = _codes(values, radius, bits)
    assert all(qmin <= c <= qmax for c in codes)
    return radius, step, codes, active


def _codes(values, radius, bits):
    qmax, qmin = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    step = max(F(radius / F(qmax)), F(1e-8))
    codes = []
    for v in values:
        clipped = min(max(v, F(-radius)), radius)
        codes.append(int(min(max(_round_half_even(float(F(clipped / step))), qmin), qmax)))
    return step, codes


def _guard(values, base, bounded, active, bits):
    best, least = None, math.inf
    for fraction in (1.0, 0.75, 0.5, 0.25, 0.0):
        between = F(base + F(F(fraction) * F(bounded - base)))
        radius = max({1.0: bounded, 0.0: base}.get(fraction, between), F(1e-8))
        step, codes = _codes(values, radius, bits)
        error = math.fsum(float(F(v - F(F(c) * step))) ** 2 for v, c in zip(values, codes))
        if error < least:
            best, least = radius, error
    return best, (active if best == max(bounded, F(1e-8)) else "GUARDED")


def _rank(share, count):
    return max(1, math.ceil(share * count - 1e-9))


def _round_half_even(x):
    low = math.floor(x)
    if x - low > 0.5 or (x - low == 0.5 and low % 2):
        return low + 1
    return low
