"""Schemes that several methods use: float, one calibrated grid, a grid per token, a rescaling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.schemes.base import InputScheme, build_input_scheme
from codtdq.schemes.lowered import Unlowered
from codtdq.schemes.stored import BITS, Stored, flag, nested, one_of, rules

SCALE_BITS = 32  # a scale is a float32 here


class FloatInput(InputScheme):
    """No quantization."""

    kind = "float"
    accepts = rules()

    def forward(self, tokens: Tensor) -> Tensor:
        """The tokens themselves."""
        return tokens

    def bits(self, channels: int) -> float:
        """Float32."""
        return 32.0

    def lower(self) -> Unlowered:
        """None: it is float."""
        return Unlowered("its input stays float")


class StaticUniform(InputScheme):
    """One calibrated grid for the whole tensor, or one per channel.

    step, zero: [1] or [C]. Symmetric grids have zero 0 and signed codes.
    """

    kind = "static-uniform"
    accepts = rules(bits=BITS, symmetric=flag)
    step: Tensor
    zero: Tensor

    def __init__(
        self,
        bits: int,
        symmetric: bool = False,
        *,
        step: Tensor | None = None,
        zero: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.code_bits, self.symmetric = bits, symmetric
        step = torch.ones(1) if step is None else step.detach().float().reshape(-1)
        zero = torch.zeros_like(step) if zero is None else zero.detach().float().reshape(-1)
        self.register_buffer("step", step)
        self.register_buffer("zero", zero)

    @classmethod
    def spanning(
        cls, low: Tensor, high: Tensor, bits: int, *, symmetric: bool = False
    ) -> StaticUniform:
        """The grid over [low, high], each [1] or [C]."""
        step, zero = grid_of(low, high, bits, symmetric)
        return cls(bits, symmetric, step=step, zero=zero)

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize with the calibrated grid."""
        return fake_shifted(
            tokens, self.step, self.zero, *code_limits(self.code_bits, self.symmetric)
        )

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A step and a zero-point, or one of each channel."""
        return {"step": one_of((1,), (channels,), low=0), "zero": one_of(tuple(self.step.shape))}

    def bits(self, channels: int) -> float:
        """Fixed grids travel with the model, not with the activation."""
        return float(self.code_bits)

    def settings(self) -> dict[str, Any]:
        """Width and symmetry."""
        return {"bits": self.code_bits, "symmetric": self.symmetric}


class DynamicToken(InputScheme):
    """A range for every token, found when it arrives: absolute maximum, or minimum and maximum."""

    kind = "dynamic-token"
    accepts = rules(bits=BITS, symmetric=flag)

    def __init__(self, bits: int, symmetric: bool = True) -> None:
        super().__init__()
        self.code_bits, self.symmetric = bits, symmetric

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize each row with its own grid."""
        low, high = tokens.amin(-1, keepdim=True), tokens.amax(-1, keepdim=True)
        step, zero = grid_of(low, high, self.code_bits, self.symmetric)
        return fake_shifted(tokens, step, zero, *code_limits(self.code_bits, self.symmetric))

    def bits(self, channels: int) -> float:
        """Codes, one scale per token, and its zero-point."""
        zero = 0 if self.symmetric else self.code_bits
        return self.code_bits + (SCALE_BITS + zero) / channels

    def settings(self) -> dict[str, Any]:
        """Width and symmetry."""
        return {"bits": self.code_bits, "symmetric": self.symmetric}


class Rescaled(InputScheme):
    """Another scheme on (x - shift) / scale, per channel; the operator's weight undoes the scale.

    For rescalings that no norm in front of the operator can take over. scale, shift: [C].
    """

    kind = "rescaled"
    accepts = rules(inner=nested)
    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        inner: InputScheme | dict[str, Any],
        *,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.inner = build_input_scheme(inner) if isinstance(inner, dict) else inner
        scale = torch.ones(1) if scale is None else scale.detach().float()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", torch.zeros_like(scale) if shift is None else shift.detach())

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat in the rescaled domain: what the rescaled weight expects."""
        return self.inner((tokens - self.shift) / self.scale)

    def reference(self, tokens: Tensor) -> Tensor:
        """The rescaled tokens."""
        return self.inner.reference((tokens - self.shift) / self.scale)

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A factor and an offset of each channel."""
        return {"scale": one_of((1,), (channels,)), "shift": one_of(tuple(self.scale.shape))}

    def bits(self, channels: int) -> float:
        """As the inner scheme."""
        return self.inner.bits(channels)

    @property
    def shares_batch(self) -> bool:
        """As the inner scheme."""
        return self.inner.shares_batch

    def settings(self) -> dict[str, Any]:
        """The inner scheme."""
        return {"inner": self.inner.record()}
