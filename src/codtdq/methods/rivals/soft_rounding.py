"""Rounding of weights that is learned while a block is reconstructed.

Nagel et al., Up or Down? Adaptive Rounding for PTQ, ICML 2020:
    W_hat = s (clip(floor(W/s) + z + h(V), 0, 2^b - 1) - z)
    h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1)
    penalty = sum(1 - |2 h(V) - 1|^beta), V starts where h(V) is the fractional part of W/s.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codtdq.numerics.affine import code_limits, decode_shifted, floor_codes, raise_codes
from codtdq.numerics.straight_through import within
from codtdq.schemes.weights import UniformWeight, from_group_rows, group_rows

GAMMA, ZETA = -0.1, 1.1  # the stretched sigmoid reaches 0 and 1


class SoftRounding(nn.Module):
    """The rounding of one weight, learned; its grids, per output or group, stay as they are."""

    floors: Tensor
    step: Tensor
    zero: Tensor
    span: Tensor  # what W_hat moves by while h goes from 0 to 1: nothing outside the grid

    def __init__(self, weight: Tensor, store: UniformWeight) -> None:
        super().__init__()
        self.shape, self.bits, self.symmetric = store.shape, store.code_bits, store.symmetric
        self.group = store.group
        zero = store.zero.float() if store.zero.numel() else torch.zeros_like(store.step)
        floors, rest = floor_codes(group_rows(weight, store.group), store.step, zero)
        self.register_buffer("floors", floors)
        self.register_buffer("step", store.step.clone())
        self.register_buffer("zero", zero)
        low, high = code_limits(self.bits, self.symmetric)
        self.register_buffer("span", store.step * ((floors >= low) & (floors < high)))
        share = (rest.clamp(1e-4, 1 - 1e-4) - GAMMA) / (ZETA - GAMMA)
        self.logits = nn.Parameter(torch.logit(share))

    def up(self) -> Tensor:
        """h(V) in [0, 1], in the rows that share a grid (`group_rows`)."""
        return _stretched(torch.sigmoid(self.logits.detach())).clamp_(0, 1)

    def values(self, up: Tensor) -> Tensor:
        """W_hat in the rows that share a grid."""
        codes = raise_codes(self.floors, up, *code_limits(self.bits, self.symmetric))
        return decode_shifted(codes, self.step, self.zero)

    def forward(self, penalty: tuple[float, float] | None = None) -> Tensor:
        """W_hat in the shape of the weight, differentiable in V.

        penalty: (weight, beta) of a penalty on h, of which a gradient through W_hat has a share.
        """
        rows: Tensor = _SoftValues.apply(self.logits, self, penalty)
        return from_group_rows(rows, self.shape)

    def undecided(self) -> float:
        """Share of weights whose h is neither 0 nor 1 (to 0.01)."""
        up = self.up()
        return float(((up > 0.01) & (up < 0.99)).float().mean())

    def hardened(self) -> UniformWeight:
        """The weight with every h taken as 0 or 1."""
        up = (self.up() >= 0.5).float()
        codes = raise_codes(self.floors, up, *code_limits(self.bits, self.symmetric))
        return UniformWeight.from_codes(
            codes,
            self.shape,
            self.bits,
            step=self.step,
            zero=self.zero,
            symmetric=self.symmetric,
            group=self.group,
        )


def _stretched(share: Tensor) -> Tensor:
    """Beyond 0 and 1, so that both are reached."""
    return (share * (ZETA - GAMMA)).add_(GAMMA)


class _SoftValues(torch.autograd.Function):
    """W_hat of V. Of the penalty only the gradient is made: its value is of no use."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, soft: SoftRounding, penalty: tuple[float, float] | None
    ) -> Tensor:
        share = torch.sigmoid(logits)
        stretched = _stretched(share)
        ctx.save_for_backward(share, stretched)
        ctx.soft, ctx.penalty = soft, penalty
        return soft.values(stretched.clamp(0, 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        share, stretched = ctx.saved_tensors
        slope = grad * ctx.soft.span
        if ctx.penalty is not None:
            weight, beta = ctx.penalty
            side = (2 * stretched).sub_(1)
            steep = side.abs().pow_(beta - 1)
            slope.addcmul_(steep, side.sign_(), value=-2 * beta * weight)
        inward = within(slope, stretched, 0, 1).mul_(ZETA - GAMMA)
        return torch.ops.aten.sigmoid_backward(inward, share), None, None
