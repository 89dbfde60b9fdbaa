"""Operators of other libraries that are a Linear in all but name."""

from __future__ import annotations

import copy
import sys

from torch import nn


def with_linears(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """The model with each Conv1D of Hugging Face transformers (GPT-2) as the Linear it is.

    Such a Conv1D multiplies by its weight [C, O]; a Linear holds the same values as [O, C]. Returns
    the model itself where it has none; else a copy that shares all other parameters, or, inplace,
    the changed model.
    """
    kind = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    if kind is None or not any(type(module) is kind for module in model.modules()):
        return model
    if not inplace:
        model = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for module in model.modules():
        if type(module) is kind and "forward" not in vars(module):
            _become_linear(module)
    return model


def _become_linear(module: nn.Module) -> None:
    weight, bias = module._parameters["weight"], module._parameters.get("bias")
    assert weight is not None
    module.__class__ = nn.Linear
    assert isinstance(module, nn.Linear)
    vars(module).pop("nf", None)
    vars(module).pop("nx", None)
    module.in_features, module.out_features = weight.shape
    module.weight = nn.Parameter(
        weight.detach().t().contiguous(), requires_grad=weight.requires_grad
    )
    if bias is None:
        module.register_parameter("bias", None)
