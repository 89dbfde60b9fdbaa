"""Per-token min-max: the control for methods that quantize token rows.

Every row of a Linear's input gets the asymmetric grid between its own minimum and maximum, found
when it arrives. Weights, and the static per-tensor inputs of convolutions (a scale per pixel does
not factor out of a convolution), are the percentile grids that its relatives use, so that what a
method adds to plain rows shows as the difference from this one.

`per-token-all` gives every pixel of a convolution's input its own range as well, as the methods
with token groups do: the control for those.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from codtdq.methods.collect import collect_inputs
from codtdq.methods.ranges import percentile_grid, percentile_weight
from codtdq.methods.registry import OWN, register_method
from codtdq.methods.workbench import Workbench
from codtdq.planning.config import QuantConfig
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import DynamicToken, StaticUniform


@dataclass(frozen=True, kw_only=True)
class PerTokenConfig(QuantConfig):
    """Which operators get rows."""

    convolutions: bool = False  # a range for every pixel, too

    @property
    def range_per(self) -> str:
        """Rows of a Linear, pixels of a map."""
        return "token"


@register_method(
    "per-token-all",
    config=PerTokenConfig,
    settings={"convolutions": True},
    title="per-token min-max, convolutions too",
    source="this project",
    evidence=OWN,
    ranges="dynamic",
    granularity="token",
    calibration_images=1,
    act_bits="4 + 36/C",
    weight_bits="4 + 40/K",
    description="plain dynamic min-max rows and pixels: what token groups are compared with",
)
@register_method(
    "per-token",
    config=PerTokenConfig,
    settings={"fold_norms": True},  # as the methods that it is the control of
    title="per-token min-max",
    source="this project",
    evidence=OWN,
    ranges="dynamic",
    granularity="token (convolutions: per tensor, static)",
    act_bits="4 + 36/C",
    weight_bits="4 + 40/K",
    description="plain dynamic min-max rows: what row-wise methods are compared with",
)
def per_token(bench: Workbench) -> None:
    """Rows at run time for Linear inputs, a calibrated grid for convolutions."""
    static = [s for s in bench.sites if s.kind != "linear" and s.act_bits is not None]
    if bench.config.convolutions:
        static = []
    stats = collect_inputs(bench, static) if static else {}
    for site in bench.sites:
        inputs: InputScheme | None = None
        if site.name in stats and site.act_bits is not None:
            inputs = percentile_input(stats[site.name].rows, site.act_bits)
        elif site.act_bits is not None:
            inputs = DynamicToken(site.act_bits, symmetric=False)
        weight = None
        if site.weight_bits is not None:
            weight = percentile_weight(site.float_weight, site.weight_bits, group=site.weight_group)
        if inputs is not None or weight is not None:
            bench.install(site, inputs=inputs, weight=weight)


def percentile_input(rows: Tensor, bits: int) -> StaticUniform:
    """One asymmetric grid for a whole tensor, between the percentiles of its rows [R, C]."""
    step, zero = percentile_grid(rows.reshape(1, -1), bits)
    return StaticUniform(bits, step=step, zero=zero)


__all__ = ["per_token", "percentile_input"]
