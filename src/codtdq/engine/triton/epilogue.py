"""What a product does with its sums before it writes them."""

from __future__ import annotations

import triton
import triton.language as tl

ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2}


@triton.jit
def finish(y, bias, column, columns, ACTIVATION: tl.constexpr):
    """Sums y [R, N] plus bias [N], if any, through GELU (by erf) or ReLU; NaN stays NaN."""
    if bias is not None:
        y += tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
    if ACTIVATION == 1:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if ACTIVATION == 2:
        y = tl.where(y < 0, 0.0, y)
    return y
