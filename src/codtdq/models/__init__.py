"""Camouflaged-object-detection networks in plain PyTorch, under the names of their releases."""

from codtdq.models.registry import (
    ModelInfo,
    build_model,
    create_model,
    list_models,
    model_info,
    register_model,
)

__all__ = [
    "ModelInfo",
    "build_model",
    "create_model",
    "list_models",
    "model_info",
    "register_model",
]
