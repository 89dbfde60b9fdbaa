"""What an operator may do to a token before it is quantized; its weight undoes it exactly.

    x' = R ((x - shift) / scale)[order]         W' = (W scale)[order] R^T,  b' = b + W shift

shift: the mean of each channel, so that groups spend no codes on an offset. scale: magnitude moved
into the weight. order: channels of like magnitude in one group. R: a 32-point Hadamard rotation of
each whole block of 32 channels, which spreads a spike over its block (orthonormal, R = R^T).
Scales, shifts and orders fold into whatever produced the input; R is 5 additions per value.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.carrier import Carried
from codtdq.numerics.rotation import rotate_blocks
from codtdq.schemes.base import InputScheme, build_input_scheme
from codtdq.schemes.lowered import LoweredInput, RowTransform, Unlowered
from codtdq.schemes.stored import Stored, flag, nested, one_of, order_of, rules


@dataclass(frozen=True)
class Transform:
    """A choice of ingredients; None or False leaves one out. All vectors are [C]."""

    shift: Tensor | None = None
    scale: Tensor | None = None
    order: Tensor | None = None
    hadamard: bool = False

    @property
    def trivial(self) -> bool:
        """Whether nothing is done."""
        return not (
            self.hadamard or any(v is not None for v in (self.shift, self.scale, self.order))
        )

    def tokens(self, x: Tensor) -> Tensor:
        """Transformed tokens of x [..., C]."""
        if self.shift is not None:
            x = x - self.shift
        if self.scale is not None:
            x = x / self.scale
        if self.order is not None:
            x = x[..., self.order]
        return rotate_blocks(x) if self.hadamard else x

    def columns(self, weight: Tensor) -> Tensor:
        """W' of a weight whose LAST dimension are the input channels [..., C]."""
        if self.scale is not None:
            weight = weight * self.scale
        if self.order is not None:
            weight = weight[..., self.order]
        return rotate_blocks(weight) if self.hadamard else weight

    def for_rows(self) -> RowTransform:
        """The same, as the engine applies it: channels ordered first."""
        order = self.order
        shift, scale = (
            v if v is None or order is None else v[order] for v in (self.shift, self.scale)
        )
        return RowTransform(
            None if shift is None else shift.float().contiguous(),
            None if scale is None else scale.float().contiguous(),
            None if order is None else order.to(torch.int32),
            self.hadamard,
        )

    def parts(self) -> list[str]:
        """Names of what is done."""
        named = {"shift": self.shift, "scale": self.scale, "order": self.order}
        return [n for n, v in named.items() if v is not None] + ["hadamard"] * self.hadamard


class Transformed(InputScheme):
    """Another scheme on x'; its operator holds W' and b'."""

    kind = "plus-transformed"
    accepts = rules(inner=nested, hadamard=flag)
    shift: Tensor
    scale: Tensor
    order: Tensor  # int16; empty: as it is

    def __init__(
        self,
        inner: InputScheme | dict[str, Any],
        hadamard: bool = False,
        *,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        self.inner = build_input_scheme(inner) if isinstance(inner, dict) else inner
        given = transform or Transform()
        self.hadamard = hadamard or given.hadamard
        self.register_buffer("shift", _kept(given.shift, torch.float32))
        self.register_buffer("scale", _kept(given.scale, torch.float32))
        self.register_buffer("order", _kept(given.order, torch.int16))

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Vectors of all channels, or none."""
        return {
            "shift": one_of((0,), (channels,)),
            "scale": one_of((0,), (channels,)),
            "order": order_of(channels),
        }

    @property
    def transform(self) -> Transform:
        """The ingredients that are in use."""
        return Transform(
            self.shift if self.shift.numel() else None,
            self.scale if self.scale.numel() else None,
            self.order.long() if self.order.numel() else None,
            self.hadamard,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat' [B, N, C]: what W' expects."""
        return self.inner(self.transform.tokens(tokens))

    def reference(self, tokens: Tensor) -> Tensor:
        """The transformed tokens."""
        return self.inner.reference(self.transform.tokens(tokens))

    def carry(self, tokens: Tensor) -> Carried | None:
        """Carriers of the transformed tokens."""
        return self.inner.carry(self.transform.tokens(tokens))

    def lower(self) -> LoweredInput | Unlowered:
        """The inner scheme behind this transform."""
        inner = self.inner.lower()
        if isinstance(inner, Unlowered):
            return inner
        if inner.transform is None and inner.how.ranges == "group" and inner.how.bounds is None:
            return dataclasses.replace(inner, transform=self.transform.for_rows())
        return Unlowered(f"{self.inner.kind!r} behind a transform is only simulated")

    @property
    def shares_batch(self) -> bool:
        """As the inner scheme."""
        return self.inner.shares_batch

    def bits(self, channels: int) -> float:
        """As the inner scheme: what is done is known beforehand and does not travel."""
        return self.inner.bits(channels)

    def label(self) -> str:
        """The inner scheme, and what is done before it."""
        return f"{self.inner.label()} after {', '.join(self.transform.parts())}"

    def settings(self) -> dict[str, Any]:
        """The inner scheme, and whether blocks are rotated."""
        return {"inner": self.inner.record(), "hadamard": self.hadamard}


def _kept(value: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.zeros(0, dtype=dtype) if value is None else value.detach().to(dtype)
