"""COD-TDQ: 4-bit post-training quantization for camouflaged object detection.

>>> import codtdq
>>> model = codtdq.quantize(my_model, calibration=batches)   # a new model, W4A4
>>> print(codtdq.plan(my_model, "cod-tdq"))             # what is quantized, and what is not
>>> codtdq.save(model, "my-model-w4a4")                 # one small directory
>>> model = codtdq.load("my-model-w4a4", model=my_model)

Names are loaded on first use: importing the package is light.
"""

from __future__ import annotations

import importlib
from typing import Any

from codtdq._version import __version__

_EXPORTS = {
    "quantize": "codtdq.api",
    "plan": "codtdq.api",
    "save": "codtdq.api",
    "load": "codtdq.api",
    "preset": "codtdq.api",
    "quantize_activation": "codtdq.api",
    "config": "codtdq.api",
    "use_backend": "codtdq.engine",
    "backend_of": "codtdq.engine",
    "list_presets": "codtdq.planning.presets",
    "list_methods": "codtdq.methods",
    "method_info": "codtdq.methods",
    "register_method": "codtdq.methods",
    "apply_method": "codtdq.methods",
    "QuantConfig": "codtdq.planning.config",
    "CodTdqConfig": "codtdq.planning.cod_tdq_config",
    "QuantPlan": "codtdq.planning.plan",
    "CalibrationContext": "codtdq.operators.calibration",
    "evaluate": "codtdq.evaluation",
    "predict": "codtdq.evaluation",
    "create_model": "codtdq.models",
    "list_models": "codtdq.models",
    "register_model": "codtdq.models",
    "CodtdqError": "codtdq.errors",
}

_SUBMODULES = ("data", "metrics", "models")

__all__ = ["__version__", *_EXPORTS, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"codtdq.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'codtdq' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
