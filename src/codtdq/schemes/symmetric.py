"""The paper's weights (Eq. weight_quant): symmetric codes, a scale per output or per group.

Under integer scales a group has a whole multiplier 1..15 of its output's scale instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.affine import qmin_of
from codtdq.numerics.carrier import weight_multiplier
from codtdq.numerics.packing import NIBBLE_BITS, packed_width
from codtdq.numerics.spec import SCALE_DTYPES, SCALES, WeightSpec
from codtdq.numerics.weight import PackedWeight, multiplied, quantize_weight, row_shape, scale_count
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import FLOAT_SCALES, LoweredWeight, Unlowered
from codtdq.schemes.stored import BITS, GROUP, Stored, one_of, optional, rules, weight_shape, word
from codtdq.schemes.weights import lowered_groups, pack_unsigned, unpack_unsigned


class SymmetricWeight(WeightScheme):
    """Packed codes [O, ceil(T I / 2)], tap by tap, and float32 or float16 scales [O, G].

    Or, under integer scales: scales [O, 1], and multipliers [O, ceil(G / 2)], two to a byte.
    """

    kind = "symmetric"
    accepts = rules(
        shape=weight_shape,
        bits=BITS,
        group_size=optional(GROUP),
        scale_dtype=word(*SCALE_DTYPES),
        scales=word(*SCALES),
    )
    packed: Tensor  # uint8, or int8 above 4 bits
    scale: Tensor
    multiplier: Tensor | None

    def __init__(
        self,
        shape: Any,
        bits: int = 4,
        group_size: int | None = None,
        scale_dtype: str = "fp32",
        scales: str = "float",
        *,
        packed: PackedWeight | None = None,
    ) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.spec = WeightSpec(
            bits=bits, group_size=group_size, scale_dtype=scale_dtype, scales=scales
        )
        rows, taps, inputs = row_shape(self.shape)
        dtype = torch.uint8 if bits <= NIBBLE_BITS else torch.int8
        if packed is None:
            blank = torch.zeros(rows, packed_width(taps * inputs, bits), dtype=dtype)
            count = scale_count(self.shape, self.spec)
            scale = torch.zeros(rows, 1 if multiplied(self.spec) else count)
            whole = torch.ones(rows, count, dtype=torch.uint8) if multiplied(self.spec) else None
        else:
            blank, scale, whole = packed.packed, packed.scale, packed.multiplier
        self.register_buffer("packed", blank)
        self.register_buffer("scale", scale.half() if scale_dtype == "fp16" else scale)
        self.register_buffer("multiplier", None if whole is None else pack_unsigned(whole, 4))

    @classmethod
    def quantize(cls, weight: Tensor, spec: WeightSpec) -> SymmetricWeight:
        """Round a weight [O, I] or [O, I, *kernel] to nearest."""
        packed = quantize_weight(weight, spec)
        return cls(
            weight.shape, spec.bits, spec.group_size, spec.scale_dtype, spec.scales, packed=packed
        )

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Codes of every weight, and scales of every output or group."""
        rows, taps, inputs = row_shape(self.shape)
        bits, width = self.spec.bits, packed_width(taps * inputs, self.spec.bits)
        low, high = (0, 255) if bits <= NIBBLE_BITS else (qmin_of(bits), -qmin_of(bits) - 1)
        scales = scale_count(self.shape, self.spec)
        found = {"packed": one_of((rows, width), low=low, high=high)}
        if not multiplied(self.spec):
            return {**found, "scale": one_of((rows, scales), low=0)}
        most = weight_multiplier(bits)
        sizes = Stored(((rows, packed_width(scales, NIBBLE_BITS)),), 0, 255, nibble=most)
        return {**found, "scale": one_of((rows, 1), low=0), "multiplier": sizes}

    def packed_weight(self) -> PackedWeight:
        """Codes and scales as the numerics read them."""
        whole = None
        if self.multiplier is not None:
            count = scale_count(self.shape, self.spec)
            whole = unpack_unsigned(self.multiplier, count, 4).to(torch.uint8)
        return PackedWeight(self.packed, self.scale.float(), self.shape, self.spec, whole)

    def dequantize(self) -> Tensor:
        """Scale * code."""
        return self.packed_weight().dequantize()

    def lower(self) -> LoweredWeight | Unlowered:
        """Codes and multipliers tap by tap."""
        weight, group = self.packed_weight(), self.spec.group_size
        if weight.scale.shape[1] > 1:
            return Unlowered(FLOAT_SCALES)
        codes, factor = weight.held(), weight.scale[:, 0]
        if weight.multiplier is None:
            bits = NIBBLE_BITS if self.spec.bits <= NIBBLE_BITS else 8
            return LoweredWeight(codes, factor, bits=bits)
        return lowered_groups(codes, factor, weight.multiplier, group, self.spec.bits)

    def settings(self) -> dict[str, Any]:
        """Shape, width and group."""
        group = {} if self.spec.group_size is None else {"group_size": self.spec.group_size}
        half = {"scale_dtype": "fp16"} if self.spec.scale_dtype == "fp16" else {}
        whole = {"scales": "integer"} if multiplied(self.spec) else {}
        return {**super().settings(), "bits": self.spec.bits, **group, **half, **whole}

    def label(self) -> str:
        """For example `W4 channel`."""
        return weight_label(self.spec)


def weight_label(spec: WeightSpec) -> str:
    """A specification in a few words."""
    text = f"W{spec.bits}"
    text += f" g{spec.group_size}" if spec.group_size else " channel"
    text += " m4" if multiplied(spec) else ""
    text += " fp16" if spec.scale_dtype == "fp16" else ""
    return text + (f" p{spec.percentile:g}" if spec.percentile else "")
