"""Let a model run as captured programs, one for each shape of its input, made when it is met.

`Captured` stands in a model's `forward`. Wherever a program does not serve (gradients, training,
hooks and listeners inside of the model, other devices and types, torch's own compilers), it calls
the model's own forward, whose operators the engine executes one by one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from codtdq.engine.cpu import library
from codtdq.engine.program.constants import Pool
from codtdq.engine.program.program import Program
from codtdq.engine.program.traced import NotCapturable
from codtdq.operators.forward import Forward, take
from codtdq.operators.quantized import QuantOperator, quant_operators

SWITCH = "CODTDQ_CAPTURE"  # "0": operators are executed one by one
SHAPES = 4  # programs that a model keeps, each with its arena
Key = tuple[tuple[int, ...], ...]


class Captured(Forward):
    """The forward of a model on the engine."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._programs: OrderedDict[Key, Program | None] = OrderedDict()
        self.refusal: str | None = None  # why the last shape has no program
        self._pool = Pool()
        self._lock = threading.Lock()
        self._state: _State | None = None

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        """What the model returns."""
        if torch.compiler.is_compiling() or settings or not self._serves(inputs):
            return self._own(*inputs, **settings)
        program = self._program_for(inputs)
        return self._own(*inputs) if program is None else program(*inputs)

    @property
    def met(self) -> bool:
        """Whether an input came that a program might serve."""
        return bool(self._programs)

    @property
    def programs(self) -> list[Program]:
        """The programs that there are, the latest last."""
        return [one for one in self._programs.values() if one is not None]

    def _serves(self, inputs: tuple[Any, ...]) -> bool:
        if not inputs or not all(_is_plain(one) for one in inputs):
            return False
        if torch._C._get_tracing_state() or torch._C._len_torch_dispatch_stack():
            return False
        if torch.is_autocast_enabled("cpu") or library.load() is None:
            return False
        state = self._state
        if state is None or not state.holds():
            with self._lock:
                state = self._state = _State(self._model)
                self._programs.clear()
                self._pool = Pool()
        if state.watched():
            return False
        learns = torch.is_grad_enabled() and (
            state.learns() or any(one.requires_grad for one in inputs)
        )
        return not learns

    def _program_for(self, inputs: tuple[Tensor, ...]) -> Program | None:
        key: Key = tuple(tuple(one.shape) for one in inputs)
        with self._lock:
            found = self._programs.get(key)
            if found is not None and found.instruction_set != library.instruction_set():
                self._programs.clear()  # the eager operators say what to do
                self._pool, found = Pool(), None
                return None
            if key not in self._programs:
                self._programs[key] = self._capture(inputs)
                while len(self._programs) > SHAPES:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return self._programs[key]

    def _capture(self, inputs: tuple[Tensor, ...]) -> Program | None:
        model = self._model

        def forward(*given: Any) -> Any:
            return type(model).forward(model, *given)

        try:
            found = Program(forward, inputs, pool=self._pool)
        except NotCapturable as error:
            self.refusal = str(error)
            return None
        self.refusal = None
        return found


_END = object()
_values = dict.values
_version, _listener = map(attrgetter, ("_version", "listener"))
_backend, _executor = map(attrgetter, ("backend", "executor"))
_training = itemgetter("training")


class _State:
    """What a recording took for granted: modules, tensors and their versions, executors.

    What a quantized operator holds is what its executor was made of, which is dropped when that
    changes: nothing inside of its schemes is looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        self._reference = weakref.ref(model)
        self._operators = list(quant_operators(model).values())
        schemes = {id(part) for one in self._operators for part in list(one.modules())[1:]}
        self._inner = [one for one in list(model.modules())[1:] if id(one) not in schemes]
        self._hooks = [
            hooks
            for module in self._inner
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        modules = (model, *self._inner)
        parts: list[dict[str, Any]] = [
            part
            for module in modules
            for part in (module._parameters, module._buffers, module._modules)
        ]
        self._parts = [part for part in parts if part]
        self._empty = [part for part in parts if not part]
        self._tensors = [
            one
            for module in modules
            for one in (*module._parameters.values(), *module._buffers.values())
            if one is not None
        ]
        self._versioned = [one for one in self._tensors if not one.is_inference()]
        self._attributes = [vars(module) for module in self._inner]
        self._contents = list(self._find_contents())
        self._forwards = list(self._find_forwards())
        self._executors = [one.ready() for one in self._operators]
        self._versions = list(map(_version, self._versioned))
        self._addresses = list(map(Tensor.data_ptr, self._tensors))

    # Before every run: loops of the interpreter, or numbers that it makes, would take as long as a
    # small network.

    def _find_contents(self) -> Iterator[Any]:
        return chain(chain.from_iterable(map(_values, self._parts)), (_END,))

    def _find_forwards(self) -> Iterator[Any]:
        return map(dict.get, self._attributes, repeat("forward"))

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return (
            not any(self._empty)
            and all(map(is_, self._find_contents(), self._contents))
            and all(map(is_, self._find_forwards(), self._forwards))
            and all(map(is_, map(_executor, self._operators), self._executors))
            and list(map(_version, self._versioned)) == self._versions
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
        )

    def watched(self) -> bool:
        """Whether somebody has to see the inside of the model, or it is in training mode."""
        everywhere = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
        if everywhere or any(self._hooks):
            return True
        model = self._reference()
        if model is None or model.training or any(map(_training, self._attributes)):
            return True
        listened = any(one is not None for one in map(_listener, self._operators))
        return listened or None in map(_backend, self._operators)

    def learns(self) -> bool:
        """Whether a parameter wants a gradient."""
        return any(one.requires_grad for one in self._tensors)


def _is_plain(x: Any) -> bool:
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.numel() > 0
    )


def capture(model: nn.Module) -> str | None:
    """Let a model run as programs from its next call on; returns why not, if so."""
    if os.environ.get(SWITCH) == "0":
        return f"turned off by {SWITCH}=0"
    if isinstance(model, QuantOperator):
        return "a single operator is one call already"
    return take(model, Captured)


def captured_of(model: nn.Module) -> Captured | None:
    """What runs a model as programs, if that is so."""
    found = model.__dict__.get("forward")
    return found if isinstance(found, Captured) else None
