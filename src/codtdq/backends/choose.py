"""Put a quantized model on a backend, operator by operator, and keep a record of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from codtdq.backends import cpu
from codtdq.convert import quant_operators
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.layers import sim_operators
from codtdq.native import library

BACKENDS = ("auto", "reference", "cpu")
ATTRIBUTE = "backend_record"


@dataclass(frozen=True)
class BackendRecord:
    """Which backend runs a model, why, and which operators it does not take."""

    name: str  # reference or cpu
    reason: str
    native: tuple[str, ...] = ()
    fallbacks: dict[str, str] = field(default_factory=dict)  # operator -> why it is simulated
    instruction_set: str | None = None  # that the weights were packed for

    @property
    def execution(self) -> str:
        """How the products are computed, in a few words."""
        return f"native int4 ({self.instruction_set})" if self.native else "simulated"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "name": self.name,
            "reason": self.reason,
            "instruction_set": self.instruction_set,
            "native_operators": len(self.native),
            "fallbacks": dict(self.fallbacks),
        }


def use_backend(model: nn.Module, backend: str = "auto") -> BackendRecord:
    """Execute the quantized operators of a model on a backend; returns what became of it.

    "auto" takes the native engine where it can run; asked for by name, a backend that cannot run
    is an error. Operators that the engine does not take stay simulated and are listed.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}; accepted: {', '.join(BACKENDS)}")
    operators = quant_operators(model)
    record = _decide(model, backend)
    if record.name == "cpu":
        fallbacks: dict[str, str] = {}
        for name, operator in operators.items():
            obstacle = cpu.obstacle(operator)
            operator.backend = operator.executor = None
            if obstacle is None:
                operator.executor = cpu.executor_for(operator)
                operator.backend = cpu.executor_for
            else:
                fallbacks[name] = obstacle
        native = tuple(name for name in operators if name not in fallbacks)
        used = library.instruction_set()
        record = BackendRecord("cpu", record.reason, native, fallbacks, used)
    else:
        for operator in operators.values():
            operator.backend = operator.executor = None
    setattr(model, ATTRIBUTE, record)
    return record


def backend_of(model: nn.Module) -> BackendRecord | None:
    """The record of a model that was put on a backend."""
    return getattr(model, ATTRIBUTE, None)


def _decide(model: nn.Module, backend: str) -> BackendRecord:
    if backend == "reference":
        return BackendRecord("reference", "asked for")
    obstacle = cpu.unavailable(model)
    if obstacle is None and not quant_operators(model):
        kind = "a method's own schemes" if sim_operators(model) else "no quantized operators"
        obstacle = f"the model has {kind}, which only the reference executes"
    if obstacle is None:
        return BackendRecord("cpu", "asked for" if backend == "cpu" else cpu.describe())
    if backend == "cpu":
        raise UnsupportedError(f"backend 'cpu' cannot run: {obstacle}")
    return BackendRecord("reference", obstacle)
