"""Weights that stay float, and integer codes on uniform grids with a zero-point."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import code_limits, decode_shifted, encode_shifted, grid_of
from codtdq.numerics.packing import NIBBLE_BITS, Nibbles, packed_width
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import LoweredWeight, Unlowered
from codtdq.schemes.stored import BITS, GROUP, Stored, flag, one_of, optional, rules, weight_shape

RUN = 16  # inputs whose multipliers a kernel tells apart


class FloatWeight(WeightScheme):
    """The weight as it is."""

    kind = "float"
    accepts = rules(shape=weight_shape)
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

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """The weight in its shape."""
        return {"values": one_of(tuple(self.shape))}

    def dequantize(self) -> Tensor:
        """The weight."""
        return self.values

    def lower(self) -> LoweredWeight | Unlowered:
        """None: it is float."""
        return Unlowered("its weight stays float")


def group_rows(weight: Tensor, group: int | None) -> Tensor:
    """Rows that share a grid: [O, K], or [O G, group], the last value repeated in a short group.

    A group that is longer than an output (a depthwise kernel) is the output.
    """
    rows = weight.detach().float().flatten(1)
    if group is None or group >= rows.shape[1]:
        return rows
    short = -rows.shape[1] % group
    if short:
        rows = torch.cat([rows, rows[:, -1:].expand(-1, short)], 1)
    return rows.reshape(-1, group)


def from_group_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """Undo `group_rows`: rows [O, K] or [O G, group] in the shape of the weight."""
    return rows.reshape(shape[0], -1)[:, : math.prod(shape[1:])].reshape(shape)


class UniformWeight(WeightScheme):
    """Integer codes on uniform grids: per output channel, per group, or one for the whole tensor.

    step, zero: [O, 1], [O G, 1] or [1, 1]; codes are packed two to a byte up to 4 bits.
    """

    kind = "uniform"
    accepts = rules(shape=weight_shape, bits=BITS, symmetric=flag, group=optional(GROUP))
    packed: Tensor
    step: Tensor
    zero: Tensor

    def __init__(
        self, shape: Any, bits: int, symmetric: bool = False, group: int | None = None
    ) -> None:
        super().__init__()
        self.shape, self.code_bits, self.symmetric = torch.Size(shape), bits, symmetric
        self.group = group
        self.register_buffer("packed", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("step", torch.zeros(0))
        self.register_buffer("zero", torch.zeros(0, dtype=torch.uint8))

    @classmethod
    def quantize(
        cls,
        weight: Tensor,
        bits: int,
        *,
        step: Tensor,
        zero: Tensor | None = None,
        symmetric: bool = False,
        group: int | None = None,
    ) -> UniformWeight:
        """Round a weight [O, ...] to nearest onto grids of its `group_rows` ([R, 1] or [1, 1])."""
        rows = group_rows(weight, group)
        zero = torch.zeros_like(step) if zero is None else zero
        codes = encode_shifted(rows, step, zero, *code_limits(bits, symmetric))
        return cls.from_codes(
            codes, weight.shape, bits, step=step, zero=zero, symmetric=symmetric, group=group
        )

    @classmethod
    def minmax(
        cls,
        weight: Tensor,
        bits: int,
        *,
        symmetric: bool = True,
        per_channel: bool = True,
        group: int | None = None,
    ) -> UniformWeight:
        """Plain range of the weight: the common 4-bit weight of methods that leave it open."""
        rows = group_rows(weight, group)
        if not per_channel:
            rows = rows.reshape(1, -1)
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        step, zero = grid_of(low, high, bits, symmetric)
        return cls.quantize(weight, bits, step=step, zero=zero, symmetric=symmetric, group=group)

    @classmethod
    def from_codes(
        cls,
        codes: Tensor,
        shape: Any,
        bits: int,
        *,
        step: Tensor,
        zero: Tensor,
        symmetric: bool,
        group: int | None = None,
    ) -> UniformWeight:
        """Store codes [R, K] (floats that hold integers) that a method has chosen."""
        store = cls(shape, bits, symmetric, group)
        low, _ = code_limits(bits, symmetric)
        store.packed = pack_unsigned((codes - low).to(torch.uint8), bits)
        store.step = step.detach().float().clone()
        # a symmetric zero-point needs no room
        store.zero = zero.to(torch.uint8) if not symmetric else torch.zeros(0, dtype=torch.uint8)
        return store

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Codes of every row, and one grid for all rows, or one of each."""
        rows = self.shape[0] * -(-math.prod(self.shape[1:]) // self._columns)
        top = 2**self.code_bits - 1
        width = packed_width(self._columns, self.code_bits)
        grids = (0,) if self.symmetric else tuple(self.step.shape)
        return {
            "packed": one_of((rows, width), low=0, high=255 if top < 16 else top),
            "step": one_of((1, 1), (rows, 1), low=0),
            "zero": one_of(grids, low=0, high=top),
        }

    @property
    def _columns(self) -> int:
        """Values of a row that shares a grid."""
        length = math.prod(self.shape[1:])
        return length if self.group is None else min(self.group, length)

    def codes(self) -> Tensor:
        """Codes [R, K] as float32."""
        low, _ = code_limits(self.code_bits, self.symmetric)
        columns = self._columns
        return unpack_unsigned(self.packed, columns, self.code_bits).reshape(-1, columns) + low

    def dequantize(self) -> Tensor:
        """Step * (code - zero)."""
        zero = self.zero.float() if self.zero.numel() else torch.zeros_like(self.step)
        return from_group_rows(decode_shifted(self.codes(), self.step, zero), self.shape)

    def settings(self) -> dict[str, Any]:
        """Shape, width, symmetry and group."""
        group = {} if self.group is None else {"group": self.group}
        return {**super().settings(), "bits": self.code_bits, "symmetric": self.symmetric, **group}


def lowered_groups(
    held: Tensor | Nibbles, factor: Tensor, multiplier: Tensor, group: int | None, bits: int
) -> LoweredWeight:
    """The form of codes [O, T, I] in -2^(bits - 1).. with multipliers [O, G] of their groups.

    Groups run along the inputs of a tap; where they span taps, or are no whole runs of 16, the
    products p r themselves are the codes, of 8 bits.
    """
    outputs, taps, inputs = held.shape
    size = group or inputs
    count = -(-inputs // size)
    per_tap = inputs > 1 and multiplier.shape[1] == taps * count
    whole_runs = size >= inputs or size % RUN == 0
    if per_tap and whole_runs and bits <= NIBBLE_BITS:
        p = multiplier.to(torch.int8).reshape(outputs, taps, count)
        return LoweredWeight(held, factor, p, group)
    codes = held.codes() if isinstance(held, Nibbles) else held
    flat = codes.reshape(outputs, -1)
    if per_tap:
        spread = multiplier.reshape(outputs, taps, count).repeat_interleave(size, 2)
        spread = spread[..., :inputs].reshape(outputs, -1)
    else:
        spread = multiplier.repeat_interleave(group or flat.shape[1], 1)[:, : flat.shape[1]]
    whole = (flat.int() * spread.int()).to(torch.int8).reshape(codes.shape)
    return LoweredWeight(whole, factor, bits=8)


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
        return packed[:, :columns].float()
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1)
    return pairs.flatten(1)[:, :columns].float()
