"""Camouflaged-object-detection networks in plain PyTorch, under the names of their releases."""

from codtdq.models.registry import (
    ModelInfo,
    build_model,
    check_installed,
    create_model,
    list_models,
    model_info,
    register_model,
)

__all__ = [
    "ModelInfo",
    "build_model",
    "check_installed",
    "create_model",
    "list_models",
    "model_info",
    "register_model",
]

# Each model file registers itself when it is imported.
from codtdq.models import birefnet as _birefnet  # noqa: F401
from codtdq.models import cfrn as _cfrn  # noqa: F401
from codtdq.models import escnet as _escnet  # noqa: F401
from codtdq.models import escnet_v2 as _escnet_v2  # noqa: F401
from codtdq.models import segformer as _segformer  # noqa: F401
from codtdq.models import vit_cod as _vit_cod  # noqa: F401
