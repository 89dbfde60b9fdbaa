"""The paper's weights (Eq. weight_quant): symmetric codes, a scale per output or per group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import qmin_of
from codtdq.numerics.packing import NIBBLE_BITS, packed_width
from codtdq.numerics.spec import SCALE_DTYPES, WeightSpec
from codtdq.numerics.weight import PackedWeight, quantize_weight, row_shape, scale_count
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import LoweredWeight, Unlowered
from codtdq.schemes.stored import BITS, GROUP, Stored, one_of, optional, rules, weight_shape, word


class SymmetricWeight(WeightScheme):
    """Packed codes [O, ceil(T I / 2)], tap by tap, and float32 or float16 scales [O, G]."""

    kind = "symmetric"
    accepts = rules(
        shape=weight_shape, bits=BITS, group_size=optional(GROUP), scale_dtype=word(*SCALE_DTYPES)
    )
    packed: Tensor  # uint8, or int8 above 4 bits
    scale: Tensor

    def __init__(
        self,
        shape: Any,
        bits: int = 4,
        group_size: int | None = None,
        scale_dtype: str = "fp32",
        *,
        packed: PackedWeight | None = None,
    ) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.spec = WeightSpec(bits=bits, group_size=group_size, scale_dtype=scale_dtype)
        rows, taps, inputs = row_shape(self.shape)
        dtype = torch.uint8 if bits <= NIBBLE_BITS else torch.int8
        if packed is None:
            blank = torch.zeros(rows, packed_width(taps * inputs, bits), dtype=dtype)
            scale = torch.zeros(rows, scale_count(self.shape, self.spec))
        else:
            blank, scale = packed.packed, packed.scale
        self.register_buffer("packed", blank)
        self.register_buffer("scale", scale.half() if scale_dtype == "fp16" else scale)

    @classmethod
    def quantize(cls, weight: Tensor, spec: WeightSpec) -> SymmetricWeight:
        """Round a weight [O, I] or [O, I, *kernel] to nearest."""
        packed = quantize_weight(weight, spec)
        return cls(weight.shape, spec.bits, spec.group_size, spec.scale_dtype, packed=packed)

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Codes of every weight, and scales of every output or group."""
        rows, taps, inputs = row_shape(self.shape)
        bits, width = self.spec.bits, packed_width(taps * inputs, self.spec.bits)
        low, high = (0, 255) if bits <= NIBBLE_BITS else (qmin_of(bits), -qmin_of(bits) - 1)
        scales = scale_count(self.shape, self.spec)
        return {
            "packed": one_of((rows, width), low=low, high=high),
            "scale": one_of((rows, scales), low=0),
        }

    def packed_weight(self) -> PackedWeight:
        """Codes and scales as the numerics read them."""
        return PackedWeight(self.packed, self.scale.float(), self.shape, self.spec)

    def dequantize(self) -> Tensor:
        """Scale * code."""
        return self.packed_weight().dequantize()

    def lower(self) -> LoweredWeight | Unlowered:
        """Codes and scales tap by tap."""
        if self.spec.bits > NIBBLE_BITS:
            return Unlowered(f"its weight has {self.spec.bits} bits, more than 4")
        weight = self.packed_weight()
        return LoweredWeight(weight.codes(), weight.tap_scales(), None, self.spec.group_size)

    def settings(self) -> dict[str, Any]:
        """Shape, width and group."""
        group = {} if self.spec.group_size is None else {"group_size": self.spec.group_size}
        half = {"scale_dtype": "fp16"} if self.spec.scale_dtype == "fp16" else {}
        return {**super().settings(), "bits": self.spec.bits, **group, **half}

    def label(self) -> str:
        """For example `W4 channel`."""
        return weight_label(self.spec)


def weight_label(spec: WeightSpec) -> str:
    """A specification in a few words."""
    text = f"W{spec.bits}"
    text += f" g{spec.group_size}" if spec.group_size else " channel"
    text += " fp16" if spec.scale_dtype == "fp16" else ""
    return text + (f" p{spec.percentile:g}" if spec.percentile else "")
