"""Weights as the product kernel reads them: nibbles or bytes in slabs of 32 inputs.

The nibble order is that of the checkpoint (`codtdq.numerics.packing`); each tap begins a slab of
its own, and a slab has one multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.numerics.packing import NIBBLE_BITS, pack
from codtdq.schemes.lowered import LoweredWeight

SLAB = 32  # channels of one tensor-core product


@dataclass(frozen=True)
class GpuWeights:
    """Weights of one operator."""

    packed: Tensor  # uint8 [O, T S 16] nibbles, or int8 [O, T S 32] whole weights
    multiplier: Tensor | None  # int8 [T S, O]; None: 1
    factor: Tensor  # float32 [O]
    shape: tuple[int, int, int]  # outputs, taps, inputs

    @classmethod
    def pack(cls, weight: LoweredWeight, factor: Tensor) -> GpuWeights:
        """Pack a weight with other factors [O].

        Multipliers of groups that are no whole slabs are multiplied in: a byte for each weight.
        """
        outputs, taps, inputs = weight.shape
        group = weight.group or inputs
        slabbed = weight.multiplier is None or group >= inputs or group % SLAB == 0
        if weight.bits > NIBBLE_BITS or not slabbed:
            whole = slabs_of(weight.whole().to(torch.int8))
            return cls(whole, None, factor.contiguous(), (outputs, taps, inputs))
        packed = pack(slabs_of(weight.codes), NIBBLE_BITS).contiguous()
        p = weight.multiplier
        if p is not None:
            count = -(-inputs // SLAB)
            index = (torch.arange(count, device=p.device) * SLAB) // group
            p = p[:, :, index].permute(1, 2, 0).reshape(-1, outputs).contiguous()
        return cls(packed, p, factor.contiguous(), (outputs, taps, inputs))

    @property
    def slabs(self) -> int:
        """S: slabs of one tap."""
        return -(-self.shape[2] // SLAB)

    @property
    def bytes(self) -> int:
        """Memory that the packed form takes."""
        multipliers = 0 if self.multiplier is None else self.multiplier.numel()
        return self.packed.numel() + multipliers + 4 * self.factor.numel()


def slabs_of(codes: Tensor) -> Tensor:
    """Codes [O, T, I] with each tap filled up to whole slabs: [O, T S 32]."""
    return F.pad(codes, (0, -codes.shape[2] % SLAB)).flatten(1).contiguous()
