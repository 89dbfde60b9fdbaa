"""Weights as the kernels read them: nibbles in slabs of 32 inputs, scales by slab.

The nibble order is that of the checkpoint (`codtdq.numerics.packing`); each tap, and each
activation group of less than 32 channels, begins a slab of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.errors import UnsupportedError
from codtdq.numerics.packing import NIBBLE_BITS, pack

SLAB = 32  # channels of one tensor-core product
MAX_GROUP = 256


@dataclass(frozen=True)
class GpuWeights:
    """Weights of one operator."""

    packed: Tensor  # uint8 [O, T S 16]
    scales: Tensor  # float32 [1, O], or [T S, O] with weight groups
    sums: Tensor | None  # int32 [T S, O]: what a zero-point is multiplied with
    shape: tuple[int, int, int]  # outputs, taps, inputs
    group: int  # of the activations

    @classmethod
    def pack(
        cls, codes: Tensor, scale: Tensor, group: int, weight_group: int | None = None
    ) -> GpuWeights:
        """Pack codes int8 [O, T, I] in -8..7 with scales [O, 1] or, per group, [O, T ceil(I/w)]."""
        outputs, taps, inputs = codes.shape
        slabs = slabs_of(codes, group)  # [O, T, S, 32]
        scales = scale.float().t().contiguous()
        if weight_group is not None and weight_group < inputs:
            index = _scale_index(inputs, group, weight_group).to(scale.device)  # [S]
            per_tap = scale.float().reshape(outputs, taps, -1)
            scales = per_tap[:, :, index].permute(1, 2, 0).reshape(-1, outputs).contiguous()
        elif scale.shape[1] == taps and taps > 1:  # one weight group, but a scale for each tap
            count = slabs.shape[2]
            scales = scale.float().t().repeat_interleave(count, 0).contiguous()
        sums = slabs.sum(-1, dtype=torch.int32).permute(1, 2, 0).reshape(-1, outputs).contiguous()
        packed = pack(slabs.flatten(1), NIBBLE_BITS)
        return cls(packed.contiguous(), scales, sums, (outputs, taps, inputs), group)

    @property
    def slabs(self) -> int:
        """S: slabs of one tap."""
        return self.packed.shape[1] * 2 // SLAB // self.shape[1]

    @property
    def bytes(self) -> int:
        """Memory that the packed form takes."""
        sums = 0 if self.sums is None else self.sums.numel()
        return self.packed.numel() + 4 * (self.scales.numel() + sums)


def group_obstacle(group: int) -> str | None:
    """Why token groups of this size have no kernel, or None."""
    if group < SLAB or (group % SLAB == 0 and group <= MAX_GROUP):
        return None
    return f"activation groups of {group}; accepted: up to 31, or multiples of 32 up to {MAX_GROUP}"


def weight_group_obstacle(inputs: int, group: int, weight_group: int) -> str | None:
    """Why weight groups do not go with token groups, or None: a slab has one weight scale."""
    if weight_group >= inputs:
        return None
    first, last = _slab_ends(inputs, group)
    if bool((first // weight_group == last // weight_group).all()):
        return None
    return f"weight groups of {weight_group} inside slabs of {min(group, SLAB)} inputs"


def slabs_of(codes: Tensor, group: int) -> Tensor:
    """Codes [O, T, I] in slabs [O, T, S, 32], zeros where a slab is short."""
    reason = group_obstacle(group)
    if reason is not None:
        raise UnsupportedError(f"no Triton product for {reason}")
    width = min(group, SLAB)
    short = -codes.shape[2] % width
    cut = F.pad(codes, (0, short)).unflatten(2, (-1, width))
    return F.pad(cut, (0, SLAB - width))


def _scale_index(inputs: int, group: int, weight_group: int) -> Tensor:
    reason = weight_group_obstacle(inputs, group, weight_group)
    if reason is not None:
        raise UnsupportedError(f"no Triton product for {reason}")
    return _slab_ends(inputs, group)[0] // weight_group


def _slab_ends(inputs: int, group: int) -> tuple[Tensor, Tensor]:
    """First and last input of each slab."""
    first = torch.arange(0, inputs, min(group, SLAB))
    return first, (first + min(group, SLAB) - 1).clamp(max=inputs - 1)
