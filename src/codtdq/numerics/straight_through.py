"""Rounding with gradients, each as one node of the graph: few passes over memory, and none of the
branches of `torch.where` or of the gradient of `clamp`, which random masks make slow.

Masks are floats, 0 or 1. What is rounded, and how, is `affine`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import decode_shifted, encode_shifted


class _FakeShifted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, zero: Tensor, low: int, high: int, keep: Tensor | None
    ) -> Tensor:
        codes = encode_shifted(x, step, zero, low, high)
        ctx.save_for_backward(x, step, zero, codes, keep)
        ctx.limits = low, high
        return mixed(decode_shifted(codes, step, zero), x, keep)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, step, zero, codes, keep = ctx.saved_tensors
        low, high = ctx.limits
        grad = grad.contiguous()
        taken = grad if keep is None else grad * keep
        scaled = x / step
        inward = within(taken, scaled + zero, low - 0.5, high + 0.5)
        of_x = of_step = None
        if ctx.needs_input_grad[1]:
            # d x_hat / d step: code - zero, less x / step where the rounding passes it through
            slope = (codes - zero).mul_(taken).addcmul_(scaled, inward, value=-1)
            of_step = slope.sum_to_size(step.shape)
        if ctx.needs_input_grad[0]:
            of_x = inward if keep is None else inward.add_(grad - taken)
        return of_x, of_step, None, None, None, None


def fake_shifted_ste(
    x: Tensor, step: Tensor, zero: Tensor, low: int, high: int, keep: Tensor | None = None
) -> Tensor:
    """`fake_shifted` with gradients for x (inside the range) and for the step, as LSQ has them.

    keep: 1 where the value is quantized, 0 where x stays as it is; None quantizes all.
    """
    result: Tensor = _FakeShifted.apply(x, step, zero, low, high, keep)
    return result


def mixed(quantized: Tensor, plain: Tensor, keep: Tensor | None) -> Tensor:
    """Each value from the one or the other, as `keep` has it; None takes the quantized ones."""
    return quantized if keep is None else torch.lerp(plain, quantized, keep)


def within(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """The gradient where x is inside the range, 0 elsewhere."""
    result: Tensor = torch.ops.aten.hardtanh_backward(grad, x, low, high)
    return result
