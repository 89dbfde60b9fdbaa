"""What is learned of inputs while a block is reconstructed: steps of their grids.

Steps (Esser et al., Learned Step Size Quantization, ICLR 2020): gradients straight through the
rounding; the 1/sqrt(N q_max) factor on the step's gradient is left out, as Adam cancels it.
Drop (Wei et al., QDrop, ICLR 2022): each value is quantized with probability p, else left float.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codtdq.numerics.affine import EPS, code_limits
from codtdq.numerics.straight_through import fake_shifted_ste, mixed
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import Rescaled, StaticUniform

_POOL = 1 << 22  # random decisions that are drawn once per block: 16 MB


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

    def dropped(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """x_hat where `keep` is 1, what it stands for where it is 0; None keeps everything."""
        return mixed(self(tokens), self.plain(tokens), keep)

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
        return self.dropped(tokens, None)

    def dropped(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """As one node."""
        return lsq(tokens, self.step, self.zero, *code_limits(self.bits, self.symmetric), keep)

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

    def dropped(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """The same for a part of the values."""
        return self.inner.dropped(self.plain(tokens), keep)

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


def lsq(
    x: Tensor, step: Tensor, zero: Tensor, low: int, high: int, keep: Tensor | None = None
) -> Tensor:
    """Quantize on a grid whose step is learned and may have fallen to zero or below."""
    return fake_shifted_ste(x, step.clamp(min=EPS), zero, low, high, keep)


class DropPool:
    """Random decisions for QDrop: drawn once, read from a random place each time.

    Drawing one number for every activation of every step would cost more than the operators.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        self.probability, self._generator = probability, generator
        self._pool = torch.zeros(0)

    def keep(self, like: Tensor) -> Tensor | None:
        """1 where the quantized value is used, else 0, in the shape of a tensor; None: all are."""
        if self.probability >= 1:
            return None
        count = like.numel()
        if self._pool.numel() < 2 * count:
            size = max(_POOL, 2 * count)
            self._pool = (torch.rand(size, generator=self._generator) < self.probability).float()
        span = self._pool.numel() - count + 1
        start = int(torch.randint(span, (1,), generator=self._generator))
        return self._pool[start : start + count].view(like.shape).to(like.dtype)


class DroppingInput(nn.Module):
    """An input quantizer that leaves some values float: exists only while a block is learned."""

    def __init__(self, inner: LearnableInput, pool: DropPool) -> None:
        super().__init__()
        self.inner, self._drop = inner, pool

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat for some values, x for the others."""
        return self.inner.dropped(tokens, self._drop.keep(tokens))
