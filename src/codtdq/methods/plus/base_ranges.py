"""Ranges of a preset (DSTG with DCRP, or a shared range), the ground that ingredients stand on.

`base` names the preset. Ingredients that are switched on replace its ranges where they apply; with
all of them off, activations are quantized as the preset does it. This is how one ingredient is
added to the paper's method at a time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.methods.workbench import Workbench
from codtdq.numerics import ActivationSpec, quantize
from codtdq.planning.planner import make_plan
from codtdq.planning.presets import preset
from codtdq.schemes.inputs import SCALE_BITS, InputQuantizer

GROUPED = "per_token_group"


class ProjectedRanges(InputQuantizer):
    """What a preset does with the input of one operator."""

    kind = "preset-ranges"

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.spec = ActivationSpec(**spec)

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]."""
        return quantize(tokens, self.spec).x_hat

    def bits(self, channels: int) -> float:
        """Codes, and a scale per token group; one shared range weighs nothing."""
        if self.spec.mode != GROUPED:
            return float(self.spec.bits)
        groups = -(-channels // self.spec.group_size)
        return self.spec.bits + SCALE_BITS * groups / channels

    def settings(self) -> dict[str, Any]:
        """The specification's fields."""
        return dataclasses.asdict(self.spec)


def base_specs(bench: Workbench, name: str) -> dict[str, ActivationSpec]:
    """Specification of every quantized input by operator name, as the preset plans it."""
    declared = getattr(getattr(bench.model, "info", None), "act_modes", None)
    config = preset(name, declared_modes=dict(declared or {}))
    if config.act_range != "dynamic":
        raise ConfigError(f"base is {name!r}, whose ranges are static; accepted: dynamic presets")
    if config.act_bits is None:
        raise ConfigError(f"base is {name!r}, which leaves activations float")
    plan = make_plan(bench.model, config)
    return {site.name: site.activation for site in plan.sites if site.activation is not None}
