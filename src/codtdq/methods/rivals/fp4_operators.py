"""Inputs and weights in NVFP4, in a channel order of the method's choice.

Weight blocks run along the input channels of one kernel tap, in the order of the input, so that the
same channels share a block on both sides. Where an output sees fewer channels than a block has (an
image, a depthwise kernel) they run along the flattened taps and channels instead. Blocks have the
format's 16 values unless a group size is set.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codtdq.errors import CheckpointError
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.numerics.nvfp4 import (
    BLOCK,
    CODE_BITS,
    SCALE_BITS,
    block_count,
    decode_e2m1,
    dequantize_nvfp4,
    encode_e2m1,
    fake_nvfp4,
    from_blocks,
    quantize_nvfp4,
    tensor_scale,
    to_blocks,
)
from codtdq.schemes.base import InputScheme, WeightScheme
from codtdq.schemes.inputs import SCALE_BITS as FLOAT_BITS
from codtdq.schemes.stored import (
    BITS,
    GROUP,
    LARGEST_GROUP,
    Stored,
    one_of,
    optional,
    order_of,
    rules,
    weight_shape,
    whole,
)
from codtdq.schemes.weights import pack_unsigned, unpack_unsigned


class Fp4Input(InputScheme):
    """NVFP4 in blocks of channels; the last `residual` channels of the order get a second term.

    x_hat = Q(x) + Q(x - Q(x)), both under one tensor scale, as one matrix product needs it. The
    tensor is one image (one entry of the first dimension), so that its batch mates do not matter.
    order: [C], or empty for the natural one.
    """

    kind = "nvfp4"
    accepts = rules(residual=whole(0, LARGEST_GROUP), block=GROUP)
    order: Tensor

    def __init__(
        self, residual: int = 0, block: int = BLOCK, *, order: Tensor | None = None
    ) -> None:
        super().__init__()
        self.residual, self.block = residual, block
        order = torch.zeros(0, dtype=torch.int16) if order is None else order.to(torch.int16)
        self.register_buffer("order", order)

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]: gather into the order, quantize, scatter back."""
        order = self.order.long()
        values, residual = self.terms(tokens[..., order] if len(order) else tokens)
        if self.residual:
            values[..., -self.residual :] += residual
        return values[..., torch.argsort(order)] if len(order) else values

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """An order of the channels, or none."""
        if self.residual > channels:
            raise CheckpointError(f"{self.residual} of {channels} channels have a residual")
        return {"order": order_of(channels)}

    def terms(self, ordered: Tensor) -> tuple[Tensor, Tensor]:
        """Q(x) [B, N, C] and Q(residual) [B, N, S] of tokens that are in the order already."""
        t = tensor_scale(ordered.abs().amax((1, 2), keepdim=True))
        values = fake_nvfp4(ordered, t, self.block)
        kept = ordered.shape[-1] - self.residual
        return values, fake_nvfp4((ordered - values)[..., kept:], t, self.block)

    def bits(self, channels: int) -> float:
        """Codes and block scales of both terms.

        Not counted: the float32 that all N * C values of an image (or attention window) share.
        """
        codes = CODE_BITS * (channels + self.residual)
        blocks = block_count(channels, self.block) + block_count(self.residual, self.block)
        return (codes + SCALE_BITS * blocks) / channels

    def settings(self) -> dict[str, Any]:
        """How many channels get a residual, and the block where it is not the format's."""
        return {"residual": self.residual, **_own_block(self.block)}


class BlockInteger(InputScheme):
    """Symmetric integers in blocks of channels with a float32 scale absmax / (2^(b-1) - 1)."""

    kind = "block-integer"
    accepts = rules(bits=BITS, block=GROUP)

    def __init__(self, bits: int, block: int = BLOCK) -> None:
        super().__init__()
        self.code_bits, self.block = bits, block

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C], each block on its own grid."""
        blocks = to_blocks(tokens, self.block)
        top = blocks.abs().amax(-1, keepdim=True)
        step, zero = grid_of(-top, top, self.code_bits, True)
        values = fake_shifted(blocks, step, zero, *code_limits(self.code_bits, True))
        return from_blocks(values, tokens.shape[-1])

    def bits(self, channels: int) -> float:
        """Codes and a float32 scale for every block."""
        return self.code_bits + FLOAT_BITS * block_count(channels, self.block) / channels

    def settings(self) -> dict[str, Any]:
        """Width, and the block where it is not the format's."""
        return {"bits": self.code_bits, **_own_block(self.block)}


class Fp4Weight(WeightScheme):
    """A weight in NVFP4: packed E2M1 codes, E4M3 scales as bytes, a float32, the channel order."""

    kind = "nvfp4"
    accepts = rules(shape=weight_shape, group=optional(GROUP))
    packed: Tensor  # uint8 [R, ceil(L / 2)]
    scales: Tensor  # uint8 [R, blocks], the bits of E4M3 floats
    t: Tensor  # [1]
    order: Tensor  # int16 [C], or empty

    def __init__(self, shape: Any, group: int | None = None) -> None:
        super().__init__()
        self.shape, self.group = torch.Size(shape), group
        self.register_buffer("packed", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("t", torch.zeros(1))
        self.register_buffer("order", torch.zeros(0, dtype=torch.int16))

    @classmethod
    def quantize(
        cls, weight: Tensor, order: Tensor | None = None, *, group: int | None = None
    ) -> Fp4Weight:
        """Round a weight [O, C, *taps] to nearest, in blocks of `group` (None: the format's).

        order: [C], ignored where blocks mix taps.
        """
        store = cls(weight.shape, group)
        if order is not None and not store.mixes_taps:
            store.order = order.to(torch.int16)
        rows = store._to_rows(weight.detach().float())
        store.t = tensor_scale(rows.abs().amax().reshape(1))
        values, scales = quantize_nvfp4(rows, store.t, store.block)
        store.packed = pack_unsigned(encode_e2m1(values), CODE_BITS)
        store.scales = scales.view(torch.uint8)
        return store

    @property
    def block(self) -> int:
        """Values that share a scale."""
        return BLOCK if self.group is None else self.group

    @property
    def mixes_taps(self) -> bool:
        """Whether the channels of one tap do not fill a block."""
        return self.shape[1] < self.block

    @property
    def _length(self) -> int:
        """Values of a row."""
        return math.prod(self.shape[1:]) if self.mixes_taps else self.shape[1]

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Codes and block scales of every row, the tensor's scale, an order of the channels."""
        rows = math.prod(self.shape) // self._length
        return {
            "packed": one_of((rows, -(-self._length // 2)), low=0, high=255),
            "scales": Stored(((rows, block_count(self._length, self.block)),), 0, 255, e4m3=True),
            "t": one_of((1,), low=0),
            "order": one_of((0,)) if self.mixes_taps else order_of(self.shape[1]),
        }

    def dequantize(self) -> Tensor:
        """W_hat [O, C, *taps]."""
        length = self._length
        codes = unpack_unsigned(self.packed, length, CODE_BITS)
        scales = self.scales.view(torch.float8_e4m3fn)
        rows = dequantize_nvfp4(decode_e2m1(codes), scales, self.t, self.block)
        last = rows.reshape(self.shape[0], *self.shape[2:], self.shape[1])
        if len(self.order):
            last = last[..., torch.argsort(self.order.long())]
        return last.movedim(-1, 1).contiguous()

    def settings(self) -> dict[str, Any]:
        """Shape, and the group size where one is set."""
        return {**super().settings(), **({} if self.group is None else {"group": self.group})}

    def _to_rows(self, weight: Tensor) -> Tensor:
        """[O, C, *taps] -> [O * taps, C] in the channel order, or [O, taps * C]."""
        last = weight.movedim(1, -1)  # [O, *taps, C]
        if self.mixes_taps:
            return last.flatten(1)
        ordered = last[..., self.order.long()] if len(self.order) else last
        return ordered.reshape(-1, weight.shape[1])


def _own_block(block: int) -> dict[str, int]:
    return {} if block == BLOCK else {"block": block}
