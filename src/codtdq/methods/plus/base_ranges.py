"""Ranges of a preset (DSTG with DCRP, or a shared range), the ground that ingredients stand on.

`base` names the preset. Ingredients that are switched on replace its ranges where they apply; with
all of them off, activations are quantized as the preset does it. This is how one ingredient is
added to the paper's method at a time.
"""

from __future__ import annotations

from codtdq.errors import ConfigError
from codtdq.methods.workbench import Workbench
from codtdq.numerics import ActivationSpec
from codtdq.planning.planner import make_plan
from codtdq.planning.presets import preset


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
