"""Ranges of the paper: DSTG's token groups, or a range per tensor or channel, projected by DCRP."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.activation import ActivationResult, quantize
from codtdq.numerics.affine import EPS, step_of
from codtdq.numerics.carrier import FACTOR_BITS, Carried, row_units
from codtdq.numerics.carry import CarrySpec, carry
from codtdq.numerics.grouping import group_count
from codtdq.numerics.spec import MODES, PROJECTIONS, SCALES, ActivationSpec
from codtdq.schemes.base import InputScheme
from codtdq.schemes.lowered import FLOAT_SCALES, MAX_GROUP, LoweredInput, Unlowered
from codtdq.schemes.stored import (
    BITS,
    GROUP,
    UNITS,
    Stored,
    flag,
    number,
    one_of,
    optional,
    rules,
    word,
)

GROUPED = "per_token_group"
_MODES = {"per_tensor": "tensor", "per_channel": "channel", GROUPED: "group"}


class ProjectedRange(InputScheme):
    """A symmetric grid per token group, channel or tensor (Eqs. DSTG_clip, dcrp).

    radius: fixed by calibration, [1] per tensor or [C] per channel; None: found at run time.
    unit: what has a float32 of its own where scales are integer: "token", "image" or "channel".
    """

    kind = "projected-range"
    accepts = rules(
        static=flag,
        bits=BITS,
        mode=word(*MODES),
        group_size=GROUP,
        percentile=optional(number(0, 1)),
        tau=optional(number(0, 1e6)),
        zero_ratio=optional(number(0, 1)),
        projection=word(*PROJECTIONS),
        literal=flag,
        scales=word(*SCALES),
        unit=word(*UNITS),
    )
    radius: Tensor | None

    def __init__(
        self,
        *,
        static: bool = False,
        radius: Tensor | None = None,
        unit: str = "token",
        **spec: Any,
    ) -> None:
        super().__init__()
        self.spec, self.unit = ActivationSpec(**spec), unit
        self.static = static or radius is not None
        blank = torch.zeros(1) if static else None  # a checkpoint fills it
        self.register_buffer("radius", blank if radius is None else radius.float())

    @classmethod
    def of(
        cls, spec: ActivationSpec, radius: Tensor | None = None, *, unit: str = "token"
    ) -> ProjectedRange:
        """The scheme of a specification."""
        return cls(radius=radius, unit=unit, **dataclasses.asdict(spec))

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A fixed radius, or one of each channel; none if ranges are found at run time."""
        return {"radius": one_of((1,), (channels,), low=0)} if self.static else {}

    def explain(self, tokens: Tensor) -> ActivationResult:
        """x_hat with radius, step, zero-bin mass and active bound of every group.

        Where scales are integer, statistics are those of the steps that whole multiples stand for.
        """
        found = quantize(tokens, self.spec, radius=self.radius)
        if not tokens.numel() or (carried := self.carry(tokens)) is None:
            return found
        # of token groups [rows, 1]; of a shared range one for all channels, or [C] of its own
        grouped = self.spec.mode == GROUPED
        unit = row_units(carried).unsqueeze(1) if grouped else carried.unit[0]
        step = carried.multiplier * unit
        projection = dataclasses.replace(found.projection, step=step.reshape(found.step.shape))
        x_hat = carried.decoded().reshape(tokens.shape).to(tokens.dtype)
        return dataclasses.replace(found, x_hat=x_hat, projection=projection)

    @property
    def how(self) -> CarrySpec:
        """How carriers are made."""
        spec = self.spec
        return CarrySpec(
            spec.bits, _MODES[spec.mode], self.unit, group=spec.group_size, bounds=spec
        )

    @property
    def step(self) -> Tensor | None:
        """Fixed steps."""
        return None if self.radius is None else step_of(self.radius.clamp(min=EPS), self.spec.bits)

    def carry(self, tokens: Tensor) -> Carried | None:
        """Carriers of tokens [B, N, C], where scales are integer."""
        return None if self.spec.scales == "float" else carry(tokens, self.how, self.step)

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        if not tokens.numel() or (carried := self.carry(tokens)) is None:
            return quantize(tokens, self.spec, radius=self.radius).x_hat
        return carried.decoded().reshape(tokens.shape).to(tokens.dtype)

    def bits(self, channels: int) -> float:
        """Codes and what travels with token groups; one shared range weighs nothing."""
        return input_bits(self.spec, channels, self.unit == "token")

    @property
    def shares_batch(self) -> bool:
        """A dynamic range of a tensor or channel is that of one image only while it is alone."""
        return not self.static and self.spec.mode != GROUPED

    def lower(self) -> LoweredInput | Unlowered:
        """The specification and the fixed steps."""
        if self.spec.scales == "float":
            return Unlowered(FLOAT_SCALES)
        if self.spec.mode == GROUPED and self.spec.group_size > MAX_GROUP:
            return Unlowered(f"activation groups of {self.spec.group_size}, more than {MAX_GROUP}")
        return LoweredInput(self.how, self.step)

    def settings(self) -> dict[str, Any]:
        """Fields of the specification that differ from the paper's, and whether it is static."""
        fields = dataclasses.fields(self.spec)
        changed = {
            field.name: getattr(self.spec, field.name)
            for field in fields
            if getattr(self.spec, field.name) != field.default
        }
        unit = {} if self.unit == "token" else {"unit": self.unit}
        return {**changed, **({"static": True} if self.static else {}), **unit}

    def label(self) -> str:
        """For example `A4 group g32 min(C1 1, C2 0.2)`."""
        return input_label(self.spec, self.static)


def input_bits(spec: ActivationSpec, channels: int, per_token: bool) -> float:
    """Effective bits of a value: codes, what each token group has, and what each token has."""
    if spec.mode != GROUPED:
        return float(spec.bits)
    share = group_count(channels, spec.group_size) / channels
    if spec.scales == "float":
        return spec.bits + FACTOR_BITS * share
    how = CarrySpec(spec.bits, "group", "token")
    token = FACTOR_BITS / channels if per_token else 0.0
    return spec.bits + how.multiplier_bits * share + token


def input_label(spec: ActivationSpec, static: bool) -> str:
    """A specification in a few words."""
    text = f"A{spec.bits} {_MODES[spec.mode]}"
    if spec.mode == GROUPED:
        text += f" g{spec.group_size}"
        if spec.scales == "integer":  # bits of a multiplier
            text += f" m{CarrySpec(spec.bits, 'group', 'token').multiplier_bits}"
    text += f" p{spec.percentile:g}" if spec.percentile else ""
    text += " static" if static else ""
    bounds = [f"C1 {spec.tau:g}"] if spec.tau is not None else []
    bounds += [f"C2 {spec.zero_ratio:g}"] if spec.zero_ratio is not None else []
    if bounds:
        text += f" {'literal' if spec.literal else spec.projection}({', '.join(bounds)})"
    return text
