"""Weights that stay float, and integer codes on uniform grids with a zero-point."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import code_limits, decode_shifted, encode_shifted, grid_of
from codtdq.numerics.packing import NIBBLE_BITS
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import LoweredWeight, Unlowered


class FloatWeight(WeightScheme):
    """The weight as it is."""

    kind = "float"
    values: Tensor

    def __init__(self, shape: Any, *, values: Tensor | None = None) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.register_buffer(
            "values", torch.zeros(0) if values is None else values.detach().float()
        )

    @classmethod
    def of(cls, weight: Tensor) -> FloatWeight:
        """Keep a weight."""
        return cls(weight.shape, values=weight.clone())

    def dequantize(self) -> Tensor:
        """The weight."""
        return self.values

    def lower(self) -> LoweredWeight | Unlowered:
        """None: it is float."""
        return Unlowered("its weight stays float")


class UniformWeight(WeightScheme):
    """Integer codes on uniform grids, one per output channel or one for the whole tensor.

    step, zero: [O, 1] or [1, 1]; codes are packed two to a byte up to 4 bits.
    """

    kind = "uniform"
    packed: Tensor
    step: Tensor
    zero: Tensor

    def __init__(self, shape: Any, bits: int, symmetric: bool = False) -> None:
        super().__init__()
        self.shape, self.code_bits, self.symmetric = torch.Size(shape), bits, symmetric
        self.register_buffer("packed", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("step", torch.zeros(0))
        self.register_buffer("zero", torch.zeros(0, dtype=torch.uint8))

    @classmethod
    def quantize(
        cls, weight: Tensor, bits: int, *, step: Tensor, zero: Tensor | None = None,
        symmetric: bool = False,
    ) -> UniformWeight:  # fmt: skip
        """Round a weight [O, ...] onto the grids step, zero ([O, 1] or [1, 1]) to nearest."""
        rows = weight.detach().float().flatten(1)
        zero = torch.zeros_like(step) if zero is None else zero
        codes = encode_shifted(rows, step, zero, *code_limits(bits, symmetric))
        return cls.from_codes(codes, weight.shape, bits, step=step, zero=zero, symmetric=symmetric)

    @classmethod
    def minmax(
        cls, weight: Tensor, bits: int, *, symmetric: bool = True, per_channel: bool = True
    ) -> UniformWeight:
        """Plain range of the weight: the common 4-bit weight of methods that leave it open."""
        rows = weight.detach().float().flatten(1)
        if not per_channel:
            rows = rows.reshape(1, -1)
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        step, zero = grid_of(low, high, bits, symmetric)
        return cls.quantize(weight, bits, step=step, zero=zero, symmetric=symmetric)

    @classmethod
    def from_codes(
        cls, codes: Tensor, shape: Any, bits: int, *, step: Tensor, zero: Tensor, symmetric: bool
    ) -> UniformWeight:
        """Store codes [O, K] (floats that hold integers) that a method has chosen."""
        store = cls(shape, bits, symmetric)
        low, _ = code_limits(bits, symmetric)
        store.packed = pack_unsigned((codes - low).to(torch.uint8), bits)
        store.step = step.detach().float().clone()
        # a symmetric zero-point needs no room
        store.zero = zero.to(torch.uint8) if not symmetric else torch.zeros(0, dtype=torch.uint8)
        return store

    def codes(self) -> Tensor:
        """Codes [O, K] as float32."""
        low, _ = code_limits(self.code_bits, self.symmetric)
        rows, columns = self.shape[0], math.prod(self.shape[1:])
        return unpack_unsigned(self.packed, columns, self.code_bits).reshape(rows, columns) + low

    def dequantize(self) -> Tensor:
        """Step * (code - zero)."""
        zero = self.zero.float() if self.zero.numel() else torch.zeros_like(self.step)
        return decode_shifted(self.codes(), self.step, zero).reshape(self.shape)

    def settings(self) -> dict[str, Any]:
        """Shape, width and symmetry."""
        return {**super().settings(), "bits": self.code_bits, "symmetric": self.symmetric}


def pack_unsigned(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [O, K] -> two to a byte where they fit, [O, ceil(K/2)]."""
    if bits > NIBBLE_BITS:
        return codes
    if codes.shape[1] % 2:
        codes = torch.cat([codes, codes.new_zeros(codes.shape[0], 1)], 1)
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_unsigned(packed: Tensor, columns: int, bits: int) -> Tensor:
    """Inverse of `pack_unsigned`, as float32 [O, K]."""
    if bits > NIBBLE_BITS:
        return packed.float()
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1)
    return pairs.flatten(1)[:, :columns].float()
