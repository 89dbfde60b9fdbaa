"""Operators of one model, switched between float and quantized in place.

A model is quantized once. Switching exchanges the class and the state of the module object itself,
as conversion does, so every reference to it (lists, tied parents) follows.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from codtdq.methods import quantize_model
from codtdq.operators import quant_operators
from codtdq.planning import QuantConfig, Site

State = tuple[type[nn.Module], dict[str, Any]]  # class and attributes of a module


class Switchboard:
    """A copy of a float model whose operators can be quantized one by one.

    What is not an operator (norms, tables) stays float throughout: the numbers show the operators.
    """

    def __init__(self, model: nn.Module, config: QuantConfig, calibration: Any = None) -> None:
        self.model = copy.deepcopy(model).eval()
        quantized = quant_operators(quantize_model(model, config, calibration))
        self.sites: dict[str, Site] = {name: op.site for name, op in quantized.items()}
        self._modules = {name: self.model.get_submodule(name) for name in quantized}
        self._float = {name: _state(module) for name, module in self._modules.items()}
        self._quantized = {name: _state(module) for name, module in quantized.items()}

    @contextmanager
    def only(self, names: Collection[str]) -> Iterator[nn.Module]:
        """Yield the model with the named operators quantized and all others float."""
        try:
            for name in names:
                _become(self._modules[name], self._quantized[name])
            yield self.model
        finally:
            for name in names:
                _become(self._modules[name], self._float[name])

    @contextmanager
    def all_but(self, names: Collection[str]) -> Iterator[nn.Module]:
        """Yield the model with the named operators float and all others quantized."""
        with self.only([name for name in self.sites if name not in names]) as model:
            yield model


def _state(module: nn.Module) -> State:
    return type(module), module.__dict__


def _become(module: nn.Module, state: State) -> None:
    module.__class__, module.__dict__ = state
