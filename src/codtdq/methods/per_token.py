"""Per-token min-max: the control for methods that quantize token rows.

Every row of a Linear's input gets the asymmetric grid between its own minimum and maximum, found
when it arrives. Weights, and the static per-tensor inputs of convolutions (a scale per pixel does
not factor out of a convolution), are the percentile grids that its relatives use, so that what a
method adds to plain rows shows as the difference from this one.
"""

from __future__ import annotations

from torch import Tensor

from codtdq.layers.input_quantizers import DynamicToken, InputQuantizer, StaticUniform
from codtdq.methods.collect import collect_inputs
from codtdq.methods.ranges import percentile_grid, percentile_weight
from codtdq.methods.registry import OWN, register_method
from codtdq.methods.workbench import Workbench


@register_method(
    "per-token", title="per-token min-max", source="this project", evidence=OWN, ranges="dynamic",
    granularity="token (convolutions: per tensor, static)", act_bits="4 + 36/C",
    description="plain dynamic min-max rows: what row-wise methods are compared with",
)  # fmt: skip
def per_token(bench: Workbench) -> None:
    """Rows at run time for Linear inputs, a calibrated grid for convolutions."""
    static = [s for s in bench.sites if s.kind != "linear" and s.act_bits is not None]
    stats = collect_inputs(bench, static) if static else {}
    for site in bench.sites:
        inputs: InputQuantizer | None = None
        if site.name in stats and site.act_bits is not None:
            inputs = percentile_input(stats[site.name].rows, site.act_bits)
        elif site.act_bits is not None:
            inputs = DynamicToken(site.act_bits, symmetric=False)
        weight = None
        if site.weight_bits is not None:
            weight = percentile_weight(site.weight, site.weight_bits)
        if inputs is not None or weight is not None:
            bench.install(site, inputs=inputs, weight=weight)


def percentile_input(rows: Tensor, bits: int) -> StaticUniform:
    """One asymmetric grid for a whole tensor, between the percentiles of its rows [R, C]."""
    step, zero = percentile_grid(rows.reshape(1, -1), bits)
    return StaticUniform(bits, step=step, zero=zero)


__all__ = ["per_token", "percentile_input"]
