"""From a float model to a quantized one: calibration, replacement, correction."""

from codtdq.convert.builder import (
    QuantRecord,
    apply_plan,
    architecture_of,
    convert,
    quant_operators,
    record_of,
)
from codtdq.convert.calibrate import CalibrationContext

__all__ = [
    "CalibrationContext",
    "QuantRecord",
    "apply_plan",
    "architecture_of",
    "convert",
    "quant_operators",
    "record_of",
]
