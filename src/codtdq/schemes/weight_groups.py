"""Weights in groups along the contracted axis: signed codes and an E4M3 scale per group.

The form of cod-tdq-plus under scales="float"; `multiplied` has the one that engines execute.

A row of a weight is laid out tap by tap, channels innermost: [O, taps, C]. Each tap's channels are
cut into groups of g (the last may be short), the groups of the activations; where an output sees
fewer than 16 channels (depthwise: one), the whole kernel is one run that is cut into groups.

A scale may be negative: the grid -8 .. 7 then turns its longer side to the larger weight, and all
16 levels are used.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import EPS, code_limits
from codtdq.numerics.nvfp4 import LARGEST_E4M3, to_e4m3
from codtdq.numerics.packing import NIBBLE_BITS, packed_width
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import FLOAT_SCALES, Unlowered
from codtdq.schemes.stored import BITS, LARGEST_GROUP, Stored, one_of, rules, weight_shape, whole
from codtdq.schemes.weights import pack_unsigned, unpack_unsigned

FEW_CHANNELS = 16  # below: groups run across taps
HEADROOM = 1.5  # scales are refined later and may grow
_SMALLEST = 2.0**-9


def group_index(shape: torch.Size, group: int) -> Tensor:
    """Group of every column [K] of the rows of a weight [O, C, *taps]; group 0: the whole row."""
    channels, taps = shape[1], math.prod(shape[2:])
    if not group:
        return torch.zeros(channels * taps, dtype=torch.long)
    if channels < FEW_CHANNELS:
        return torch.arange(channels * taps) // group
    per_tap = torch.arange(channels) // group
    count = -(-channels // group)
    return (torch.arange(taps)[:, None] * count + per_tap).flatten()


def weight_rows(weight: Tensor) -> Tensor:
    """[O, C, *taps] -> [O, taps * C], channels innermost."""
    return weight.movedim(1, -1).flatten(1)


def weight_from_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """Inverse of `weight_rows`."""
    return rows.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1).contiguous()


class ScaleFormat:
    """E4M3 scales under one float32 per tensor."""

    def __init__(self, unit: Tensor) -> None:
        self.unit = unit

    @classmethod
    def covering(cls, scales: Tensor) -> ScaleFormat:
        """A format whose largest number lies above all of `scales`."""
        return cls((scales.abs().max() * HEADROOM / LARGEST_E4M3).clamp(min=EPS).reshape(1))

    def round(self, scales: Tensor) -> Tensor:
        """The nearest scales that can be stored; never zero."""
        return self.codes(scales).float() * self.unit

    def codes(self, scales: Tensor) -> Tensor:
        """float8 numbers of scales."""
        scaled = scales / self.unit
        size = scaled.abs().clamp(min=_SMALLEST)
        return to_e4m3(size).float().copysign(scaled).to(torch.float8_e4m3fn)


class GroupedWeight(WeightScheme):
    """Packed codes [O, K], E4M3 scales [O, groups] as bytes, one float32."""

    kind = "plus-groups"
    accepts = rules(shape=weight_shape, bits=BITS, group=whole(0, LARGEST_GROUP))
    packed: Tensor
    scales: Tensor
    unit: Tensor

    def __init__(self, shape: Any, bits: int, group: int = 32) -> None:
        super().__init__()
        self.shape, self.code_bits, self.group = torch.Size(shape), bits, group
        self.register_buffer("packed", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("unit", torch.zeros(1))

    @classmethod
    def from_codes(
        cls,
        codes: Tensor,
        scales: Tensor,
        scale_format: ScaleFormat,
        shape: Any,
        bits: int,
        group: int,
    ) -> GroupedWeight:
        """Store codes [O, K] (floats that hold integers) with scales [O, groups]."""
        store = cls(shape, bits, group)
        low, _ = code_limits(bits, True)
        store.packed = pack_unsigned((codes - low).to(torch.uint8), bits)
        store.scales = scale_format.codes(scales).view(torch.uint8)
        store.unit = scale_format.unit.clone()
        return store

    @classmethod
    def blank(cls, shape: Any, bits: int, group: int) -> GroupedWeight:
        """A store of zeros, as large as that of any weight of this shape."""
        index = group_index(torch.Size(shape), group)
        codes = torch.zeros(shape[0], len(index))
        scales = torch.ones(shape[0], int(index.max()) + 1)
        return cls.from_codes(codes, scales, ScaleFormat(torch.ones(1)), shape, bits, group)

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Codes of every weight, a scale of every group, their unit."""
        rows, columns = self.shape[0], math.prod(self.shape[1:])
        groups = int(group_index(self.shape, self.group)[-1]) + 1
        top = 255 if self.code_bits <= NIBBLE_BITS else 2**self.code_bits - 1
        return {
            "packed": one_of((rows, packed_width(columns, self.code_bits)), low=0, high=top),
            "scales": Stored(((rows, groups),), 0, 255, e4m3=True),
            "unit": one_of((1,), low=0),
        }

    def dequantize(self) -> Tensor:
        """Scale * code."""
        steps = self._scales()[:, group_index(self.shape, self.group)]
        return weight_from_rows(self._codes() * steps, self.shape)

    def lower(self) -> Unlowered:
        """None: scales are float."""
        return Unlowered(FLOAT_SCALES)

    def _codes(self) -> Tensor:
        rows, columns = self.shape[0], math.prod(self.shape[1:])
        low, _ = code_limits(self.code_bits, True)
        return unpack_unsigned(self.packed, columns, self.code_bits).reshape(rows, columns) + low

    def _scales(self) -> Tensor:
        return self.scales.view(torch.float8_e4m3fn).float() * self.unit

    def label(self) -> str:
        """For example `g32`."""
        return f"g{self.group}" if self.group else "channel"

    def settings(self) -> dict[str, Any]:
        """Shape, width and group."""
        return {**super().settings(), "bits": self.code_bits, "group": self.group}
