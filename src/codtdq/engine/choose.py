"""Put a quantized model on a backend, operator by operator, and keep a record of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from codtdq.engine.cpu import executors as cpu
from codtdq.engine.cpu import library
from codtdq.engine.cpu import searched_executors as weighed
from codtdq.engine.cpu.fit import obstacle
from codtdq.engine.float_operators import give_back, take_over
from codtdq.engine.fusion import blank_products, fuse, separate
from codtdq.engine.triton import device as gpu
from codtdq.engine.triton import executors as triton
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.operators import QuantOperator, SimOperator, quant_operators, sim_operators
from codtdq.operators.backed import BackedOperator, Executor
from codtdq.operators.quantized import DTYPES
from codtdq.planning.plan import QuantPlan
from codtdq.planning.trace import trace

BACKENDS = ("auto", "reference", "cpu", "triton")
ATTRIBUTE = "backend_record"
TRACE_SIZE = 64  # side of the image that a registered model is traced on


@dataclass(frozen=True)
class BackendRecord:
    """Which backend runs a model, why, and which operators it does not take."""

    name: str  # reference, cpu or triton
    reason: str
    native: tuple[str, ...] = ()
    fallbacks: dict[str, str] = field(default_factory=dict)  # operator -> why it is simulated
    instruction_set: str | None = None  # that the weights were packed for
    fused: int = 0  # norms and activations that are computed along with a product
    sharing: int = 0  # operators that use the codes of another one
    unfused: str | None = None  # why nothing was fused
    float_operators: tuple[str, ...] = ()  # that the engine computes too, not quantized

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
            "fused_modules": self.fused,
            "shared_inputs": self.sharing,
            "unfused": self.unfused,
            "float_operators": list(self.float_operators),
        }


def use_backend(
    model: nn.Module, backend: str = "auto", *, example: Any | None = None
) -> BackendRecord:
    """Execute the quantized operators of a model on a backend; returns what became of it.

    "auto" takes the native engine where it can run; asked for by name, a backend that cannot run
    is an error. Operators that the engine does not take stay simulated and are listed.

    example: a batch of any size, on which the model is traced once, without its products, to find
        what can be fused; a registered model needs none.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}; accepted: {', '.join(BACKENDS)}")
    operators: dict[str, BackedOperator] = {**quant_operators(model), **sim_operators(model)}
    record = _decide(model, backend)
    separate(operators)
    give_back(model)
    for operator in operators.values():
        operator.backend = operator.executor = None
        operator.channels_last = False
        operator.device_type = gpu.target().type if record.name == "triton" else "cpu"
        if isinstance(operator, SimOperator) and operator._buffers.get("weight_cache") is None:
            operator.refresh()
    if record.name == "cpu":
        record = _go_native(model, operators, record.reason, example)
    elif record.name == "triton":
        model.to(gpu.target())
        record = _go_native(model, operators, record.reason, example, triton)
    setattr(model, ATTRIBUTE, record)
    return record


def _go_native(
    model: nn.Module, operators: dict[str, BackedOperator], reason: str, example: Any | None,
    engine: Any = cpu,
) -> BackendRecord:  # fmt: skip
    on_cpu = engine is cpu
    obstacles = {name: _obstacle(operator, engine) for name, operator in operators.items()}
    fallbacks = {name: why for name, why in obstacles.items() if why is not None}
    native = {name: operators[name] for name in operators if name not in fallbacks}
    unfused = _fuse(model, operators, native, example, engine)
    declared = getattr(getattr(model, "info", None), "channels_last", False)
    for operator in native.values():
        operator.channels_last = declared
        operator.backend = _executors(operator, engine)
        operator.executor = operator.backend(operator)
        if isinstance(operator, SimOperator):
            operator.drop_weight_cache()
    return BackendRecord(
        "cpu" if on_cpu else "triton",
        reason,
        tuple(native),
        fallbacks,
        library.instruction_set() if on_cpu else gpu.describe(),
        fused=sum(len(operator.followers) for operator in native.values()),
        sharing=sum(operator.shared is not None for operator in native.values())
        - len({id(operator.shared) for operator in native.values() if operator.shared}),
        unfused=unfused,
        float_operators=take_over(model) if on_cpu else (),
    )


def _obstacle(operator: BackedOperator, engine: Any) -> str | None:
    """Why an engine does not take an operator."""
    if isinstance(operator, QuantOperator):
        fits = obstacle if engine is cpu else triton.obstacle
        return fits(operator.site, operator, operator.compute_dtype)
    assert isinstance(operator, SimOperator)
    return weighed.obstacle(operator) if engine is cpu else "a method's own scheme"


def _executors(operator: BackedOperator, engine: Any) -> Callable[[Any], Executor]:
    own = isinstance(operator, SimOperator)
    executor_for: Callable[[Any], Executor] = (weighed if own else engine).executor_for
    return executor_for


def _fuse(
    model: nn.Module, operators: dict[str, BackedOperator], native: dict[str, BackedOperator],
    example: Any | None, engine: Any,
) -> str | None:  # fmt: skip
    """Fuse what a trace allows; returns why nothing was fused, if so."""
    if example is None:
        if getattr(model, "info", None) is None:
            return "the model is not registered and no example was given"
        device = next(model.parameters()).device
        example = torch.zeros(1, 3, TRACE_SIZE, TRACE_SIZE, device=device)
    try:
        with blank_products(operators.values()):
            graph = trace(model, example, names=operators)
    except Exception as error:  # a model may fail on the example in any way it likes
        return f"the trace failed: {type(error).__name__}: {' '.join(str(error).split())}"

    def encoding(operator: Any) -> Hashable:
        return (weighed if isinstance(operator, SimOperator) else engine).encoding(operator)

    fuse(native, model, graph, encoding, gates=engine is cpu)
    return None


def foresee(model: nn.Module, plan: QuantPlan) -> BackendRecord:
    """What "auto" would do with a float model once it is quantized by a plan."""
    reason = cpu.unavailable(model)
    if reason is not None:
        return BackendRecord("reference", reason)
    dtype = DTYPES[plan.config.compute_dtype]
    obstacles = {
        site.name: obstacle(site, model.get_submodule(site.name), dtype) for site in plan.quantized
    }
    fallbacks = {name: why for name, why in obstacles.items() if why is not None}
    native = tuple(name for name in obstacles if name not in fallbacks)
    return BackendRecord("cpu", cpu.describe(), native, fallbacks, library.instruction_set())


def foresee_operators(model: nn.Module) -> BackendRecord:
    """What "auto" would do with a quantized model; nothing is packed."""
    reason = cpu.unavailable(model)
    if reason is not None:
        return BackendRecord("reference", reason)
    operators: dict[str, BackedOperator] = {**quant_operators(model), **sim_operators(model)}
    obstacles = {name: _obstacle(operator, cpu) for name, operator in operators.items()}
    fallbacks = {name: why for name, why in obstacles.items() if why is not None}
    native = tuple(name for name in operators if name not in fallbacks)
    return BackendRecord("cpu", cpu.describe(), native, fallbacks, library.instruction_set())


def backend_of(model: nn.Module) -> BackendRecord | None:
    """The record of a model that was put on a backend."""
    return getattr(model, ATTRIBUTE, None)


def _decide(model: nn.Module, backend: str) -> BackendRecord:
    if backend == "reference":
        return BackendRecord("reference", "asked for")
    engine = triton if backend == "triton" else cpu
    obstacle = engine.unavailable(model)
    if obstacle is None and not quant_operators(model):
        sims = sim_operators(model).values()
        if engine is triton or all(weighed.obstacle(operator) for operator in sims):
            kind = "a method's own schemes" if sims else "no quantized operators"
            obstacle = f"the model has {kind}, which only the reference executes"
    if obstacle is None:
        if backend == "auto":
            return BackendRecord("cpu", cpu.describe())
        return BackendRecord(backend, "asked for")
    if backend != "auto":
        raise UnsupportedError(f"backend {backend!r} cannot run: {obstacle}")
    return BackendRecord("reference", obstacle)
