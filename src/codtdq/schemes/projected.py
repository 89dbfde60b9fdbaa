"""Ranges of the paper: DSTG's token groups, or a range per tensor or channel, projected by DCRP."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from codtdq.numerics.activation import ActivationResult, quantize
from codtdq.numerics.grouping import group_count
from codtdq.numerics.spec import MODES, PROJECTIONS, ActivationSpec
from codtdq.schemes.base import InputScheme
from codtdq.schemes.lowered import ProjectedForm
from codtdq.schemes.stored import BITS, GROUP, Stored, flag, number, one_of, optional, rules, word

SCALE_BITS = 32  # a scale is a float32 here
GROUPED = "per_token_group"
_MODES = {"per_tensor": "tensor", "per_channel": "channel", GROUPED: "group"}


class ProjectedRange(InputScheme):
    """A symmetric grid per token group, channel or tensor (Eqs. DSTG_clip, dcrp).

    radius: fixed by calibration, [1] per tensor or [C] per channel; None: found at run time.
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
    )
    radius: Tensor | None

    def __init__(self, *, static: bool = False, radius: Tensor | None = None, **spec: Any) -> None:
        super().__init__()
        self.spec = ActivationSpec(**spec)
        self.static = static or radius is not None
        blank = torch.zeros(1) if static else None  # a checkpoint fills it
        self.register_buffer("radius", blank if radius is None else radius.float())

    @classmethod
    def of(cls, spec: ActivationSpec, radius: Tensor | None = None) -> ProjectedRange:
        """The scheme of a specification."""
        return cls(radius=radius, **dataclasses.asdict(spec))

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A fixed radius, or one of each channel; none if ranges are found at run time."""
        return {"radius": one_of((1,), (channels,), low=0)} if self.static else {}

    def explain(self, tokens: Tensor) -> ActivationResult:
        """x_hat with radius, step, zero-bin mass and active bound of every group."""
        return quantize(tokens, self.spec, radius=self.radius)

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        return self.explain(tokens).x_hat

    def bits(self, channels: int) -> float:
        """Codes, and a scale per token group; one shared range weighs nothing."""
        if self.spec.mode != GROUPED:
            return float(self.spec.bits)
        return self.spec.bits + SCALE_BITS * group_count(channels, self.spec.group_size) / channels

    @property
    def shares_batch(self) -> bool:
        """A dynamic range of a tensor or channel is that of one image only while it is alone."""
        return not self.static and self.spec.mode != GROUPED

    def lower(self) -> ProjectedForm:
        """The specification and the fixed radii."""
        return ProjectedForm(self.spec, self.radius)

    def settings(self) -> dict[str, Any]:
        """Fields of the specification that differ from the paper's, and whether it is static."""
        fields = dataclasses.fields(self.spec)
        changed = {
            field.name: getattr(self.spec, field.name)
            for field in fields
            if getattr(self.spec, field.name) != field.default
        }
        return {**changed, "static": True} if self.static else changed

    def label(self) -> str:
        """For example `A4 group g32 min(C1 1, C2 0.2)`."""
        return input_label(self.spec, self.static)


def input_label(spec: ActivationSpec, static: bool) -> str:
    """A specification in a few words."""
    text = f"A{spec.bits} {_MODES[spec.mode]}"
    text += f" g{spec.group_size}" if spec.mode == GROUPED else ""
    text += f" p{spec.percentile:g}" if spec.percentile else ""
    text += " static" if static else ""
    bounds = [f"C1 {spec.tau:g}"] if spec.tau is not None else []
    bounds += [f"C2 {spec.zero_ratio:g}"] if spec.zero_ratio is not None else []
    if bounds:
        text += f" {'literal' if spec.literal else spec.projection}({', '.join(bounds)})"
    return text
