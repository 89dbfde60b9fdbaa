"""The operators that replace Linear and Conv, and norms that stay in float32."""

from codtdq.layers.norms import Fp32GroupNorm, Fp32LayerNorm
from codtdq.layers.quantized import (
    QuantConv1d,
    QuantConv2d,
    QuantLinear,
    QuantOperator,
    operator_for,
)
from codtdq.layers.simulated import SimOperator, sim_operators

__all__ = [
    "Fp32GroupNorm",
    "Fp32LayerNorm",
    "QuantConv1d",
    "QuantConv2d",
    "QuantLinear",
    "QuantOperator",
    "SimOperator",
    "operator_for",
    "sim_operators",
]
