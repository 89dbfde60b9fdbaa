"""Shared by the tests of the kernels."""

from __future__ import annotations

import os

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the extra `gpu`")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1"),
]
compiled = [
    pytest.mark.gpu,
    pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile"),
]
STEP_TOLERANCE = 1e-6  # relative: deviations are summed in another order and precision
TIE_TOLERANCE = 1e-5  # a value this close to the middle of two codes may get either of them
PRODUCT_TOLERANCE = 1e-6  # relative to the largest output, given equal codes


def awkward(rows, channels, seed=0):
    """Values with everything that a quantizer trips over, NaN and infinity excepted."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, generator=generator)
    x *= torch.rand(rows, 1, generator=generator) * 3
    x[0] = 0.0  # no evidence, no deviation
    if rows > 1:
        x[1] = 2.5  # a constant
    if rows > 2:
        x[2, : channels // 2] = 0.0
        x[2, -1] = 40.0  # heavy tail
    if rows > 3:
        x[3] *= 1e-9  # under the floor of the step
    if rows > 4:
        x[4] = torch.where(x[4] > 0, 1.0, -3.0)  # ties
    return x


def assert_same_codes(x, codes, step, expected_codes, expected_step, group):
    """Equal, except where float32 sums differ: steps to 1e-6, and codes at ties."""
    assert torch.equal(step.isnan(), expected_step.isnan())
    both = step.isfinite()
    difference = ((step - expected_step).abs() / expected_step)[both]
    assert difference.numel() == 0 or difference.max() <= STEP_TOLERANCE
    tokens = torch.nn.functional.pad(x, (0, codes.shape[1] - x.shape[1]))
    scaled = tokens.unflatten(1, (-1, group)) / expected_step.unsqueeze(-1)
    off_middle = ((scaled - scaled.floor()) - 0.5).abs().flatten(1)
    other = codes != expected_codes
    assert (off_middle[other] <= TIE_TOLERANCE).all()
    assert other.sum() <= 0.001 * codes.numel() + 1
