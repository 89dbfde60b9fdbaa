"""Weights in groups with whole multipliers: w = v p r, v a float32 of the output.

r is a signed code, p a whole number of size 1..15 that a group of inputs shares, so that p r is a
signed byte. A negative p turns the grid -8 .. 7 round: its longer side goes to the larger weight,
and all 16 levels are used. Groups are those of `weight_groups`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import EPS
from codtdq.numerics.carrier import weight_limits, weight_multiplier
from codtdq.numerics.packing import NIBBLE_BITS, Nibbles, packed_width
from codtdq.numerics.weight import row_shape
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import LoweredWeight
from codtdq.schemes.stored import BITS, LARGEST_GROUP, Stored, one_of, rules, weight_shape, whole
from codtdq.schemes.weight_groups import group_index, weight_from_rows
from codtdq.schemes.weights import lowered_groups, pack_unsigned, unpack_unsigned

BYTE = 8
_SIGNS = 0x88  # by which two unsigned nibbles and two in two's complement differ


class MultiplierFormat:
    """Scales that are whole multiples of a float32 [..., 1] per output."""

    def __init__(self, unit: Tensor, bits: int) -> None:
        self.unit, self.most = unit, weight_multiplier(bits)

    @classmethod
    def covering(cls, scales: Tensor, bits: int) -> MultiplierFormat:
        """The format whose largest multiplier is the largest scale of each output [..., groups]."""
        largest = scales.abs().amax(-1, keepdim=True)
        return cls((largest / weight_multiplier(bits)).clamp(min=EPS), bits)

    def round(self, scales: Tensor) -> Tensor:
        """The nearest scales [..., groups] that can be stored; never zero."""
        return self.multipliers(scales) * self.unit

    def multipliers(self, scales: Tensor) -> Tensor:
        """Whole multipliers of scales, as floats."""
        ratio = scales / self.unit
        return torch.round(ratio.abs()).clamp(1, self.most).copysign(ratio)

    def candidates(self, scales: Tensor) -> list[Tensor]:
        """The scales below and above each, as far as they can be stored."""
        ratio = scales / self.unit
        sizes = (ratio.abs().floor(), ratio.abs().floor() + 1)
        return [size.clamp(1, self.most).copysign(ratio) * self.unit for size in sizes]


class MultipliedWeight(WeightScheme):
    """Packed codes [O, K], sizes of multipliers [O, groups] as nibbles, signs as bits, factors [O].

    Weights of 7 bits and more have no multipliers.
    """

    kind = "multiplied"
    accepts = rules(shape=weight_shape, bits=BITS, group=whole(0, LARGEST_GROUP))
    packed: Tensor
    sizes: Tensor
    signs: Tensor
    factor: Tensor

    def __init__(self, shape: Any, bits: int, group: int = 32) -> None:
        super().__init__()
        self.shape, self.code_bits = torch.Size(shape), bits
        self.group = group if weight_multiplier(bits) > 1 else 0
        for name in ("packed", "sizes", "signs"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("factor", torch.zeros(0))

    @classmethod
    def from_codes(
        cls, codes: Tensor, scales: Tensor, unit: Tensor, shape: Any, bits: int, group: int
    ) -> MultipliedWeight:
        """Store codes [O, K] (floats that hold integers), scales [O, groups] in units [O, 1]."""
        store = cls(shape, bits, group)
        p = MultiplierFormat(unit, bits).multipliers(scales)
        store.packed = pack_unsigned((codes - weight_limits(bits)[0]).to(torch.uint8), bits)
        store.factor = unit.squeeze(1).float().clone()
        if weight_multiplier(bits) > 1:
            store.sizes = pack_unsigned(p.abs().to(torch.uint8), NIBBLE_BITS)
            store.signs = _pack_bits(p < 0)
        else:
            store.factor *= p[:, 0]
        return store

    @classmethod
    def blank(cls, shape: Any, bits: int, group: int) -> MultipliedWeight:
        """A store of zeros, as large as that of any weight of this shape."""
        index = group_index(torch.Size(shape), group if weight_multiplier(bits) > 1 else 0)
        codes, unit = torch.zeros(shape[0], len(index)), torch.ones(shape[0], 1)
        scales = torch.ones(shape[0], int(index.max()) + 1)
        return cls.from_codes(codes, scales, unit, shape, bits, group)

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Codes of every weight, size and sign of every group's multiplier, factors of outputs."""
        rows, columns = self.shape[0], math.prod(self.shape[1:])
        bits, most = self.code_bits, weight_multiplier(self.code_bits)
        groups = int(group_index(self.shape, self.group)[-1]) + 1
        nibble = bits <= NIBBLE_BITS
        top = 2**bits - 1
        sizes, signs = packed_width(groups, NIBBLE_BITS), -(-groups // BYTE)
        none = one_of((0,))
        return {
            "packed": Stored(
                ((rows, packed_width(columns, bits)),),
                0,
                255 if nibble else top,
                nibble=top if nibble else None,
            ),
            "sizes": Stored(((rows, sizes),), 0, 255, nibble=most) if most > 1 else none,
            "signs": one_of((rows, signs), low=0, high=255) if most > 1 else none,
            "factor": one_of((rows,)),
        }

    def multipliers(self) -> Tensor:
        """Whole p [O, groups], int8."""
        count = int(group_index(self.shape, self.group).max()) + 1
        if not self.sizes.numel():
            return torch.ones(self.shape[0], 1, dtype=torch.int8, device=self.factor.device)
        sizes = unpack_unsigned(self.sizes, count, NIBBLE_BITS).to(torch.int8)
        return torch.where(_unpack_bits(self.signs, count), -sizes, sizes)

    def dequantize(self) -> Tensor:
        """Factor * whole weight."""
        index = group_index(self.shape, self.group).to(self.factor.device)
        whole = self._codes() * self.multipliers().float()[:, index]
        return weight_from_rows(whole * self.factor.unsqueeze(1), self.shape)

    def lower(self) -> LoweredWeight:
        """Codes and multipliers tap by tap."""
        if not self.sizes.numel():
            return LoweredWeight(self._held(), self.factor, bits=BYTE)
        return lowered_groups(
            self._held(), self.factor, self.multipliers(), self.group or None, self.code_bits
        )

    def _held(self) -> Tensor | Nibbles:
        """Codes [O, T, I]; of 4 bits two to a byte, as signed ones have them."""
        shape = row_shape(self.shape)
        if self.code_bits == NIBBLE_BITS:
            return Nibbles(self.packed ^ _SIGNS, shape)
        return self._codes().to(torch.int8).reshape(shape)

    def _codes(self) -> Tensor:
        columns = math.prod(self.shape[1:])
        return (
            unpack_unsigned(self.packed, columns, self.code_bits) + weight_limits(self.code_bits)[0]
        )

    def label(self) -> str:
        """For example `g32 m5`: 5 bits for a multiplier with its sign."""
        if weight_multiplier(self.code_bits) == 1:
            return "channel"
        return f"g{self.group} m5" if self.group else "channel"

    def settings(self) -> dict[str, Any]:
        """Shape, width and group."""
        return {**super().settings(), "bits": self.code_bits, "group": self.group}


def _pack_bits(flags: Tensor) -> Tensor:
    """Booleans [O, n] -> uint8 [O, ceil(n / 8)], the first in the lowest bit."""
    short = -flags.shape[1] % BYTE
    padded = torch.nn.functional.pad(flags.to(torch.uint8), (0, short))
    place = torch.arange(BYTE, device=flags.device)
    return (padded.unflatten(1, (-1, BYTE)).int() << place).sum(-1).to(torch.uint8)


def _unpack_bits(packed: Tensor, count: int) -> Tensor:
    """Inverse of `_pack_bits`."""
    place = torch.arange(BYTE, device=packed.device)
    return (packed.int().unsqueeze(-1) >> place & 1).flatten(1)[:, :count].bool()
