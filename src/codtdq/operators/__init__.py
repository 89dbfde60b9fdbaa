"""The operators that replace Linear and Conv, and the steps that every conversion shares."""

from codtdq.operators.calibration import CalibrationContext
from codtdq.operators.listening import listening
from codtdq.operators.norms import Fp32GroupNorm, Fp32LayerNorm
from codtdq.operators.quantized import (
    QuantConv1d,
    QuantConv2d,
    QuantLinear,
    QuantOperator,
    operator_for,
    quant_operators,
)
from codtdq.operators.record import QuantRecord, architecture_of, record_of

__all__ = [
    "CalibrationContext",
    "Fp32GroupNorm",
    "Fp32LayerNorm",
    "QuantConv1d",
    "QuantConv2d",
    "QuantLinear",
    "QuantOperator",
    "QuantRecord",
    "architecture_of",
    "listening",
    "operator_for",
    "quant_operators",
    "record_of",
]
