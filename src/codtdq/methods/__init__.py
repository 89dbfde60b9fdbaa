"""Every method of the benchmark behind one door: `apply_method(model, name, calibration)`.

One file per method, one config dataclass, one `@register_method` line. What methods share lies
beside them: `workbench` (the model in work), `collect` (bounded calibration statistics), `ranges`
(range searches), `folding` (moving scales into norms), `reconstruction` (learning block by block).
"""

from codtdq.methods.apply import MethodRecord, apply_method
from codtdq.methods.registry import (
    MethodConfig,
    MethodInfo,
    list_methods,
    method_info,
    register_method,
)
from codtdq.methods.store import load_method_model, save_method_model
from codtdq.methods.workbench import Workbench

__all__ = [
    "MethodConfig",
    "MethodInfo",
    "MethodRecord",
    "Workbench",
    "apply_method",
    "list_methods",
    "load_method_model",
    "method_info",
    "register_method",
    "save_method_model",
]
