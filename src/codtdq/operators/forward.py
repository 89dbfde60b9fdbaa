"""What stands in the `forward` of a quantized model."""

from __future__ import annotations

import inspect
import weakref
from types import CodeType
from typing import Any

import torch
from torch import nn

from codtdq.numerics.threads import one_thread


class Forward:
    """A model's own forward with one torch thread: no result depends on the number of threads.

    Operators that the engine executes use all threads all the same: their sums have one order.
    """

    def __init__(self, model: nn.Module) -> None:
        self._reference = weakref.ref(model)  # which owns this: its memory goes with it at once

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        """What the model returns."""
        return self._own(*inputs, **settings)

    def _own(self, *inputs: Any, **settings: Any) -> Any:
        model = self._model
        forward = type(model).forward
        if torch.compiler.is_compiling():  # a graph knows no threads
            return forward(model, *inputs, **settings)
        with one_thread():
            return forward(model, *inputs, **settings)

    @property
    def _model(self) -> nn.Module:
        model = self._reference()
        assert model is not None
        return model

    @property
    def __code__(self) -> CodeType:  # torch.export asks a forward for its arguments
        return type(self._model).forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self._model).forward.__get__(self._model))

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        return type(self)(memo.get(id(self._model), self._model))

    def __reduce__(self) -> tuple[type[Forward], tuple[nn.Module]]:
        return type(self), (self._model,)


def take(model: nn.Module, kind: type[Forward]) -> str | None:
    """Put a forward of this kind into a model; returns why not, if so."""
    if "forward" in model.__dict__:
        return "its forward was replaced"
    model.__dict__["forward"] = kind(model)
    return None


def release(model: nn.Module) -> None:
    """Undo `take`."""
    if isinstance(model.__dict__.get("forward"), Forward):
        del model.__dict__["forward"]
