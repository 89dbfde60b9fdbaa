"""What is learned while a block is reconstructed: rounding of weights, steps of input grids.

Rounding (Nagel et al., Up or Down? Adaptive Rounding for PTQ, ICML 2020):
    W_hat = s (clip(floor(W/s) + z + h(V), 0, 2^b - 1) - z)
    h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1)
    penalty = sum(1 - |2 h(V) - 1|^beta), V starts where h(V) is the fractional part of W/s.
Steps (Esser et al., Learned Step Size Quantization, ICLR 2020): gradients straight through the
rounding; the 1/sqrt(N q_max) factor on the step's gradient is left out, as Adam cancels it.
Drop (Wei et al., QDrop, ICLR 2022): each value is quantized with probability p, else left float.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codtdq.numerics.affine import (
    EPS,
    code_limits,
    decode_shifted,
    encode_shifted,
    floor_codes,
    raise_codes,
)
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import Rescaled, StaticUniform
from codtdq.schemes.weights import UniformWeight, from_group_rows, group_rows

GAMMA, ZETA = -0.1, 1.1  # the stretched sigmoid reaches 0 and 1
_POOL = 1 << 22  # random decisions that are drawn once per block: 4 MB


class SoftRounding(nn.Module):
    """The rounding of one weight, learned; its grids, per output or group, stay as they are."""

    floors: Tensor
    step: Tensor
    zero: Tensor

    def __init__(self, weight: Tensor, store: UniformWeight) -> None:
        super().__init__()
        self.shape, self.bits, self.symmetric = store.shape, store.code_bits, store.symmetric
        self.group = store.group
        zero = store.zero.float() if store.zero.numel() else torch.zeros_like(store.step)
        floors, rest = floor_codes(group_rows(weight, store.group), store.step, zero)
        self.register_buffer("floors", floors)
        self.register_buffer("step", store.step.clone())
        self.register_buffer("zero", zero)
        share = (rest.clamp(1e-4, 1 - 1e-4) - GAMMA) / (ZETA - GAMMA)
        self.logits = nn.Parameter(torch.logit(share))

    def up(self) -> Tensor:
        """h(V) in [0, 1], in the rows that share a grid (`group_rows`)."""
        return (torch.sigmoid(self.logits) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)

    def forward(self, up: Tensor) -> Tensor:
        """W_hat in the shape of the weight, differentiable in `up` = h(V)."""
        codes = raise_codes(self.floors, up, *code_limits(self.bits, self.symmetric))
        return from_group_rows(decode_shifted(codes, self.step, self.zero), self.shape)

    @staticmethod
    def penalty(up: Tensor, beta: float) -> Tensor:
        """sum(1 - |2h - 1|^beta): zero once every h is 0 or 1."""
        return (1 - (2 * up - 1).abs().pow(beta)).sum()

    def undecided(self) -> float:
        """Share of weights whose h is neither 0 nor 1 (to 0.01)."""
        up = self.up().detach()
        return float(((up > 0.01) & (up < 0.99)).float().mean())

    def hardened(self) -> UniformWeight:
        """The weight with every h taken as 0 or 1."""
        up = (self.up().detach() >= 0.5).float()
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


class LearnableInput(nn.Module):
    """Stands in for an input quantizer while its block is reconstructed.

    A subclass has `nn.Parameter`s, a `forward` with gradients for them and for the tokens, and
    `frozen()`: the input quantizer that remains.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C] of tokens [B, N, C], with gradients."""
        raise NotImplementedError

    def frozen(self) -> InputScheme:
        """The scheme with what was learned."""
        raise NotImplementedError

    def plain(self, tokens: Tensor) -> Tensor:
        """What x_hat stands for without quantization: the tokens, unless the scheme rescales."""
        return tokens

    def advance(self, share: float) -> bool:
        """Called before each step with the share of steps done; True if parameters were replaced,
        after which their optimiser starts anew.
        """
        return False


class LearnedStep(LearnableInput):
    """A static grid whose steps are learned; zero-points stay."""

    zero: Tensor

    def __init__(self, start: StaticUniform) -> None:
        super().__init__()
        self.bits, self.symmetric = start.code_bits, start.symmetric
        self.step = nn.Parameter(start.step.clone())
        self.register_buffer("zero", start.zero.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize with the grid as it is now."""
        return lsq(tokens, self.step, self.zero, *code_limits(self.bits, self.symmetric))

    def frozen(self) -> InputScheme:
        """A static grid."""
        step = self.step.detach().clamp(min=EPS)
        return StaticUniform(self.bits, self.symmetric, step=step, zero=self.zero)


class LearnedRescaled(LearnableInput):
    """A learnable scheme behind a fixed per-channel rescaling."""

    scale: Tensor
    shift: Tensor

    def __init__(self, start: Rescaled, inner: LearnableInput) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("scale", start.scale.clone())
        self.register_buffer("shift", start.shift.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat in the rescaled domain."""
        x_hat: Tensor = self.inner(self.plain(tokens))
        return x_hat

    def plain(self, tokens: Tensor) -> Tensor:
        """(x - shift) / scale."""
        return (tokens - self.shift) / self.scale

    def frozen(self) -> InputScheme:
        """The rescaling around what was learned."""
        return Rescaled(self.inner.frozen(), scale=self.scale, shift=self.shift)

    def advance(self, share: float) -> bool:
        """As the inner scheme."""
        return self.inner.advance(share)


class FixedInput(LearnableInput):
    """A scheme without anything to learn: gradients of the tokens pass straight through."""

    def __init__(self, fixed: InputScheme) -> None:
        super().__init__()
        self.fixed = fixed

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat, as if it were x to a gradient."""
        plain = self.plain(tokens)
        return plain + (self.fixed(tokens) - plain).detach()

    def plain(self, tokens: Tensor) -> Tensor:
        """As the scheme says."""
        return self.fixed.reference(tokens)

    def frozen(self) -> InputScheme:
        """The scheme itself."""
        return self.fixed


def learnable_input(quantizer: InputScheme) -> LearnableInput:
    """The stand-in of a scheme: learned steps for static grids, anything else fixed."""
    if isinstance(quantizer, Rescaled):
        return LearnedRescaled(quantizer, learnable_input(quantizer.inner))
    if isinstance(quantizer, StaticUniform):
        return LearnedStep(quantizer)
    return FixedInput(quantizer)


class _Lsq(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
        codes = encode_shifted(x, step, zero, low, high)
        ctx.save_for_backward(x, step, zero, codes)
        ctx.limits = low, high
        return decode_shifted(codes, step, zero)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, step, zero, codes = ctx.saved_tensors
        low, high = ctx.limits
        scaled = x / step
        shifted = scaled + zero
        inside = (shifted > low - 0.5) & (shifted < high + 0.5)
        inward = grad * inside
        # d x_hat / d step: code - zero, less x / step where the rounding is passed straight through
        slope = torch.addcmul((codes - zero) * grad, scaled, inward, value=-1)
        return inward, slope.sum_to_size(step.shape), None, None, None


def lsq(x: Tensor, step: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """`fake_shifted_ste` as one node, for less memory traffic."""
    result: Tensor = _Lsq.apply(x, step.clamp(min=EPS), zero, low, high)
    return result


class DropPool:
    """Random decisions for QDrop: drawn once, read from a random place each time.

    Drawing one number for every activation of every step would cost more than the operators.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        self.probability, self._generator = probability, generator
        self._pool = torch.zeros(0, dtype=torch.bool)

    def mask(self, like: Tensor) -> Tensor:
        """Booleans in the shape of a tensor: True where the quantized value is used."""
        count = like.numel()
        if self._pool.numel() < 2 * count:
            size = max(_POOL, 2 * count)
            self._pool = torch.rand(size, generator=self._generator) < self.probability
        span = self._pool.numel() - count + 1
        start = int(torch.randint(span, (1,), generator=self._generator))
        return self._pool[start : start + count].view(like.shape)

    def mix(self, quantized: Tensor, plain: Tensor) -> Tensor:
        """Each value from the one or the other."""
        if self.probability >= 1:
            return quantized
        return torch.where(self.mask(plain), quantized, plain)


class DroppingInput(nn.Module):
    """An input quantizer that leaves some values float: exists only while a block is learned."""

    def __init__(self, inner: LearnableInput, pool: DropPool) -> None:
        super().__init__()
        self.inner, self._drop = inner, pool

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat for some values, x for the others."""
        return self._drop.mix(self.inner(tokens), self.inner.plain(tokens))
