"""Every method behind one door: `quantize_model(model, config, calibration)`.

One file per method, one config dataclass, one `@register_method` line. What methods share lies
beside them: `workbench` (the model in work), `collect` (bounded calibration statistics), `ranges`
(range searches), `folding` (moving scales into norms), `reconstruction` (learning block by block).
"""

from codtdq.methods.quantize import apply_method, outline, quantize_model
from codtdq.methods.registry import (
    MethodInfo,
    config_for,
    config_from,
    config_of,
    list_methods,
    method_info,
    register_method,
)
from codtdq.methods.workbench import Workbench

__all__ = [
    "MethodInfo",
    "Workbench",
    "apply_method",
    "config_for",
    "config_from",
    "config_of",
    "list_methods",
    "method_info",
    "outline",
    "quantize_model",
    "register_method",
]
