"""Nibble packing: two 4-bit codes in a byte, rows padded by at most one code.

Layout (format version 1): a row of n signed codes becomes ceil(n / 2) bytes; code 2i sits in the
low nibble of byte i, code 2i + 1 in the high one, both in two's complement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NIBBLE_BITS = 4


@dataclass(frozen=True)
class Nibbles:
    """Signed codes [O, T, I] of up to 4 bits as `pack` stores them: a row of bytes per output."""

    packed: Tensor  # uint8 [O, ceil(T I / 2)]
    shape: tuple[int, int, int]

    def codes(self) -> Tensor:
        """One code to a byte: int8 [O, T, I]."""
        _, taps, inputs = self.shape
        return unpack(self.packed, taps * inputs, NIBBLE_BITS).reshape(self.shape)

    def outputs(self, some: slice) -> Nibbles:
        """The codes of some outputs."""
        packed = self.packed[some]
        return Nibbles(packed, (packed.shape[0], *self.shape[1:]))


def packed_width(count: int, bits: int) -> int:
    """Bytes that a row of `count` codes takes on disk and in memory."""
    return (count + 1) // 2 if bits <= NIBBLE_BITS else count


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack int8 codes [..., n] into uint8 [..., ceil(n / 2)], or int8 [..., n] above 4 bits."""
    if bits > NIBBLE_BITS:
        return codes.to(torch.int8)
    nibbles = codes.to(torch.uint8) & 0x0F
    if nibbles.shape[-1] % 2:
        nibbles = torch.nn.functional.pad(nibbles, (0, 1))
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """Undo `pack`: int8 codes [..., count]."""
    if bits > NIBBLE_BITS:
        return packed
    low = (packed << 4).view(torch.int8) >> 4  # the arithmetic shift brings the sign down
    high = packed.view(torch.int8) >> 4
    return torch.stack((low, high), dim=-1).flatten(-2)[..., :count]
