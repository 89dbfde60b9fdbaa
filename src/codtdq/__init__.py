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
from typing import TYPE_CHECKING, Any

from codtdq._version import __version__ as __version__

if TYPE_CHECKING:  # what editors and type checkers see; at run time _EXPORTS has the same names
    from codtdq import data as data
    from codtdq import metrics as metrics
    from codtdq import models as models
    from codtdq.api import compile as compile
    from codtdq.api import config as config
    from codtdq.api import export as export
    from codtdq.api import load as load
    from codtdq.api import plan as plan
    from codtdq.api import preset as preset
    from codtdq.api import quantize as quantize
    from codtdq.api import quantize_activation as quantize_activation
    from codtdq.api import save as save
    from codtdq.api import verify as verify
    from codtdq.declarations import Declaration as Declaration
    from codtdq.declarations import declare as declare
    from codtdq.engine import backend_of as backend_of
    from codtdq.engine import use_backend as use_backend
    from codtdq.errors import CodtdqError as CodtdqError
    from codtdq.evaluation.evaluate import evaluate as evaluate
    from codtdq.evaluation.predict import predict as predict
    from codtdq.methods import apply_method as apply_method
    from codtdq.methods import list_methods as list_methods
    from codtdq.methods import method_info as method_info
    from codtdq.methods import register_method as register_method
    from codtdq.models import create_model as create_model
    from codtdq.models import list_models as list_models
    from codtdq.models import register_model as register_model
    from codtdq.operators.calibration import CalibrationContext as CalibrationContext
    from codtdq.planning.cod_tdq_config import CodTdqConfig as CodTdqConfig
    from codtdq.planning.config import QuantConfig as QuantConfig
    from codtdq.planning.plan import QuantPlan as QuantPlan
    from codtdq.planning.presets import list_presets as list_presets
    from codtdq.sharing import from_pretrained as from_pretrained
    from codtdq.sharing import save_pretrained as save_pretrained

_EXPORTS = {
    "quantize": "codtdq.api",
    "plan": "codtdq.api",
    "save": "codtdq.api",
    "load": "codtdq.api",
    "verify": "codtdq.api",
    "preset": "codtdq.api",
    "quantize_activation": "codtdq.api",
    "config": "codtdq.api",
    "compile": "codtdq.api",
    "export": "codtdq.api",
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
    "Declaration": "codtdq.declarations",
    "declare": "codtdq.declarations",
    "CodtdqError": "codtdq.errors",
    "save_pretrained": "codtdq.sharing",
    "from_pretrained": "codtdq.sharing",
}

_SUBMODULES = ("data", "metrics", "models")

if not TYPE_CHECKING:  # hidden from type checkers, which would take any name for granted
    __all__ = ["__version__", *_EXPORTS, *_SUBMODULES]

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return importlib.import_module(f"codtdq.{name}")
        if name not in _EXPORTS:
            raise AttributeError(f"module 'codtdq' has no attribute {name!r}")
        try:
            from codtdq.memory import garbage_stays

            with garbage_stays():
                return getattr(importlib.import_module(_EXPORTS[name]), name)
        except ModuleNotFoundError as error:
            if error.name == "torch" or str(error.name).startswith("codtdq."):
                raise ImportError(
                    f"codtdq.{name} needs the whole package: run pip install codtdq; "
                    "codtdq-runtime alone has codtdq.runtime"
                ) from error
            raise

    def __dir__() -> list[str]:
        return sorted(__all__)
