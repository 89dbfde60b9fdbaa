"""The numerics: rounding, token groups, range projection, weights, packing."""

from codtdq.numerics.activation import ActivationResult, quantize
from codtdq.numerics.projection import INFEASIBLE_C1, INFEASIBLE_C2, Active, Projection
from codtdq.numerics.spec import ActivationSpec, WeightSpec
from codtdq.numerics.weight import PackedWeight, quantize_weight

__all__ = [
    "INFEASIBLE_C1",
    "INFEASIBLE_C2",
    "ActivationResult",
    "ActivationSpec",
    "Active",
    "PackedWeight",
    "Projection",
    "WeightSpec",
    "quantize",
    "quantize_weight",
]
