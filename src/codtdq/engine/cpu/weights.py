"""Weights in the engine's panels: two tensors that the products read."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Weight
from codtdq.errors import UnsupportedError


@dataclass(frozen=True)
class PackedWeights:
    """Weights of one operator, packed for the instruction set that was in use."""

    packed: Tensor  # uint8: nibbles code + 8 in panels
    scales: Tensor  # float32, padded to whole panels; factors of outputs before those of groups
    shape: tuple[int, int, int]  # outputs, taps, inputs
    group: int  # activation channels that share one integer sum
    weight_group: int  # 0: one scale per output
    instruction_set: str
    exact: bool = False  # scales of few digits: a sum is converted and scaled in one step

    @classmethod
    def pack(
        cls,
        codes: Tensor,
        scale: Tensor,
        group: int,
        weight_group: int | None = None,
        factor: Tensor | None = None,
    ) -> PackedWeights:
        """Pack codes int8 [O, T, I] in -8..7 with scales [O, 1] or, per group, [O, T ceil(I/w)].

        factor: float32 [O], times the scales of groups.
        """
        outputs, taps, inputs = codes.shape
        assert factor is None or (weight_group and factor.numel() == outputs)
        described = _describe((outputs, taps, inputs), group, weight_group or 0)
        packed = torch.zeros(described.packed_bytes, dtype=torch.uint8)
        scales = torch.zeros(described.scale_count)
        codes, scale = codes.contiguous(), scale.float().contiguous()
        factor = None if factor is None else factor.float().contiguous()
        described.packed, described.scales = packed.data_ptr(), scales.data_ptr()
        library.check(
            library.engine().cod_weight_pack(
                codes.data_ptr(),
                scale.data_ptr(),
                None if factor is None else factor.data_ptr(),
                byref(described),
                torch.get_num_threads(),
            )
        )
        used = library.instruction_set()
        assert used is not None
        shape, exact = (outputs, taps, inputs), bool(described.exact)
        return cls(packed, scales, shape, group, weight_group or 0, used, exact)

    @cached_property
    def described(self) -> Weight:
        """The engine's view of these tensors."""
        if self.instruction_set != library.instruction_set():
            raise UnsupportedError(
                f"weights were packed for {self.instruction_set}, {library.instruction_set()} is "
                "in use; call use_backend again"
            )
        weight = _describe(self.shape, self.group, self.weight_group)
        if (self.packed.numel(), self.scales.numel()) != (weight.packed_bytes, weight.scale_count):
            raise UnsupportedError("weights were packed in another layout; call use_backend again")
        weight.packed, weight.scales = self.packed.data_ptr(), self.scales.data_ptr()
        weight.exact = self.exact
        return weight

    @property
    def bytes(self) -> int:
        """Memory that the packed form takes."""
        return self.packed.numel() + 4 * self.scales.numel()


def _describe(shape: tuple[int, int, int], group: int, weight_group: int) -> Weight:
    weight = Weight()
    if library.engine().cod_weight_describe(*shape, group, weight_group, byref(weight)):
        raise UnsupportedError(
            f"no native product for weights {shape} in activation groups of {group} and weight "
            f"groups of {weight_group or 'all inputs'}"
        )
    return weight
