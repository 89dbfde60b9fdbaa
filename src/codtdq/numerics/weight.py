"""Static symmetric weight quantization (Eq. weight_quant): once, at conversion.

A weight is read as rows [O, T, I]: output channels, kernel taps (1 for Linear), inputs of a tap.
Codes are stored tap by tap with channels last, the order in which a channels-last kernel walks.
Scales are one per output channel, or one per `group_size` inputs along the contracted axis: the
inputs of a tap, or the taps themselves where a tap has a single input (depthwise).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.numerics.affine import EPS, decode, encode, step_of, to_codes
from codtdq.numerics.carrier import weight_multiplier
from codtdq.numerics.grouping import Groups, group_count, split
from codtdq.numerics.packing import NIBBLE_BITS, Nibbles, pack
from codtdq.numerics.projection import base_radius
from codtdq.numerics.spec import ActivationSpec, WeightSpec


@dataclass(frozen=True)
class PackedWeight:
    """A quantized weight: what is stored, and all that is needed to read it back."""

    packed: Tensor  # uint8 [O, ceil(T*I/2)] up to 4 bits, int8 [O, T*I] above
    scale: Tensor  # float32 [O, G], or [O, 1] under multipliers
    shape: torch.Size  # of the float weight: [O, I] or [O, I, *kernel]
    spec: WeightSpec
    multiplier: Tensor | None = None  # whole, uint8 [O, G], of integer scales of groups

    def held(self) -> Tensor | Nibbles:
        """Integer codes [O, T, I] as they are stored."""
        shape = row_shape(self.shape)
        if self.spec.bits <= NIBBLE_BITS:
            return Nibbles(self.packed, shape)
        return self.packed.reshape(shape)

    def codes(self) -> Tensor:
        """Integer codes, int8 [O, T, I]."""
        held = self.held()
        return held.codes() if isinstance(held, Nibbles) else held

    def dequantize(self) -> Tensor:
        """W_hat in float32, in the original shape."""
        _, taps, inputs = row_shape(self.shape)
        values = decode(self.codes().float(), self._spread(taps, inputs))
        return from_rows(values, self.shape)

    def _spread(self, taps: int, inputs: int) -> Tensor:
        """Scales [O, G] repeated over the elements that share them, as [O, T, I]."""
        if self.spec.group_size is None:
            return self.scale.unsqueeze(-1)
        scale = self.scale if self.multiplier is None else self.scale * self.multiplier
        return self.spread(scale, taps, inputs)

    def spread(self, per_group: Tensor, taps: int, inputs: int) -> Tensor:
        """Values [O, G] of groups as [O, T, I]."""
        length = _contracted(taps, inputs)
        per_line = per_group.reshape(per_group.shape[0], -1, group_count(length, self._group()))
        spread = per_line.repeat_interleave(self._group(), dim=-1)[..., :length]
        return spread.reshape(-1, taps, inputs)

    def _group(self) -> int:
        assert self.spec.group_size is not None
        return self.spec.group_size


def quantize_weight(weight: Tensor, spec: WeightSpec) -> PackedWeight:
    """Quantize a weight [O, I] or [O, I, *kernel] and pack it."""
    rows = to_rows(weight.detach().float())  # [O, T, I]
    radius = weight_radius(rows, spec)  # [O, G]
    step, multiplier = step_of(radius, spec.bits), None
    if multiplied(spec):
        most = weight_multiplier(spec.bits)
        scale = _stored(step.amax(1, keepdim=True) / most, spec)
        multiplier = torch.ceil(step / scale).clamp(1, most)
        step = scale * multiplier
    else:
        scale = step = _stored(step, spec)
    groups, shape = _lines(rows, spec)
    per_line = (*groups.values.shape[:-1], 1)
    encoded = encode(groups.values, radius.reshape(per_line), step.reshape(per_line), spec.bits)
    codes = to_codes(encoded).flatten(-2)[..., : shape[-1]].reshape(rows.shape)
    packed = pack(codes.flatten(1), spec.bits)
    whole = None if multiplier is None else multiplier.to(torch.uint8)
    return PackedWeight(packed, scale, weight.shape, spec, whole)


def multiplied(spec: WeightSpec) -> bool:
    """Whether groups have whole multipliers instead of scales."""
    return spec.scales == "integer" and spec.group_size is not None


def _stored(scale: Tensor, spec: WeightSpec) -> Tensor:
    """Scales as they will be read back, in float32."""
    if spec.scale_dtype == "fp32":
        return scale
    half = torch.finfo(torch.float16)
    return scale.clamp(half.smallest_normal, half.max).half().float()


def weight_radius(rows: Tensor, spec: WeightSpec) -> Tensor:
    """Radius of each scale: [O, T, I] -> [O, G]. Maximum or percentile of |w|, at least 1e-8."""
    groups, _ = _lines(rows, spec)
    return base_radius(groups, spec.percentile).clamp(min=EPS).reshape(rows.shape[0], -1)


def clip_weight(weight: Tensor, percentile: float | None) -> Tensor:
    """A weight [O, ...] clipped at a percentile of each output's |w|; None leaves it as it is."""
    if percentile is None:
        return weight
    radius = weight_radius(to_rows(weight.float()), WeightSpec(percentile=percentile))  # [O, 1]
    radius = radius.reshape(-1, *[1] * (weight.ndim - 1)).to(weight.dtype)
    return torch.maximum(torch.minimum(weight, radius), -radius)


def scale_count(shape: torch.Size, spec: WeightSpec) -> int:
    """G: scales that one output channel carries."""
    _, taps, inputs = row_shape(shape)
    if spec.group_size is None:
        return 1
    lines = 1 if inputs == 1 else taps
    return lines * group_count(_contracted(taps, inputs), spec.group_size)


def row_shape(shape: torch.Size) -> tuple[int, int, int]:
    """(O, T, I) of a Linear or Conv weight shape."""
    taps = 1
    for side in shape[2:]:
        taps *= side
    return shape[0], taps, shape[1]


def to_rows(weight: Tensor) -> Tensor:
    """[O, I, *kernel] -> [O, T, I]."""
    return weight.reshape(weight.shape[0], weight.shape[1], -1).transpose(1, 2)


def from_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """[O, T, I] -> [O, I, *kernel], contiguous."""
    return rows.transpose(1, 2).reshape(shape).contiguous()


def _contracted(taps: int, inputs: int) -> int:
    return taps if inputs == 1 else inputs


def _lines(rows: Tensor, spec: WeightSpec) -> tuple[Groups, torch.Size]:
    """Groups [O, lines, K, g] that share a scale, and the shape they were cut from."""
    channels, taps, inputs = rows.shape
    if spec.group_size is None:
        line = rows.reshape(channels, 1, taps * inputs)
        size = taps * inputs
    else:
        line = rows.transpose(1, 2) if inputs == 1 else rows
        size = spec.group_size
    return split(line, ActivationSpec(group_size=max(size, 1))), line.shape
