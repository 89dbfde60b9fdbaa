"""The numerics: rounding, token groups, range projection, weights, packing."""

from codtdq.quantizer.activation import ActivationResult, quantize
from codtdq.quantizer.projection import INFEASIBLE_C1, INFEASIBLE_C2, Active, Projection
from codtdq.quantizer.spec import ActivationSpec, WeightSpec
from codtdq.quantizer.weight import PackedWeight, quantize_weight

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
