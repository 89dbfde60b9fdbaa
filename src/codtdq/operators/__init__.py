"""The operators that replace Linear and Conv, and the way from a float model to a quantized one."""

from codtdq.operators.calibration import CalibrationContext
from codtdq.operators.conversion import (
    QuantRecord,
    apply_plan,
    architecture_of,
    convert,
    quant_operators,
    record_of,
)
from codtdq.operators.norms import Fp32GroupNorm, Fp32LayerNorm
from codtdq.operators.quantized import (
    QuantConv1d,
    QuantConv2d,
    QuantLinear,
    QuantOperator,
    operator_for,
)
from codtdq.operators.simulated import SimOperator, sim_operators

__all__ = [
    "CalibrationContext",
    "Fp32GroupNorm",
    "Fp32LayerNorm",
    "QuantConv1d",
    "QuantConv2d",
    "QuantLinear",
    "QuantOperator",
    "QuantRecord",
    "SimOperator",
    "apply_plan",
    "architecture_of",
    "convert",
    "operator_for",
    "quant_operators",
    "record_of",
    "sim_operators",
]
