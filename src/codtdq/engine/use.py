"""Put a quantized model on a backend, operator by operator, and keep a record of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from codtdq.engine.backend import Backend
from codtdq.engine.cpu.backend import CpuBackend
from codtdq.engine.float_operators import release
from codtdq.engine.fusion import blank_products, fuse, separate
from codtdq.engine.program.capture import capture as capture_model
from codtdq.engine.program.capture import captured_of
from codtdq.engine.triton.backend import TritonBackend
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.operators.forward import Forward, take
from codtdq.operators.forward import release as release_forward
from codtdq.operators.quantized import QuantOperator, quant_operators
from codtdq.planning.trace import trace

EXECUTING: dict[str, Backend] = {"cpu": CpuBackend(), "triton": TritonBackend()}
BACKENDS = ("auto", "reference", *EXECUTING)
PREFERRED = "cpu"  # what "auto" takes where it can run
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
    uncaptured: str | None = None  # why the model does not run as captured programs
    programs: tuple[str, ...] = ()  # captured so far: shapes, instructions, memory

    @property
    def execution(self) -> str:
        """How most operators are computed, in a few words."""
        mostly = len(self.native) >= len(self.fallbacks)
        return f"native ({self.instruction_set})" if self.native and mostly else "simulated"

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
            "captured": list(self.programs),
            "uncaptured": self.uncaptured,
        }


def use_backend(
    model: nn.Module, backend: str = "auto", *, example: Any | None = None, capture: bool = True
) -> BackendRecord:
    """Execute the quantized operators of a model on a backend; returns what became of it.

    "auto" takes the native engine where it can run; asked for by name, a backend that cannot run
    is an error. Operators that the engine does not take stay simulated and are listed.

    example: a batch of any size, on which the model is traced once, without its products, to find
        what can be fused; a registered model needs none.
    capture: on the native engine, run whole forward passes as captured programs, one for each
        shape of the input, where nothing needs to see the inside of the model.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}; accepted: {', '.join(BACKENDS)}")
    operators = quant_operators(model)
    record = predict_backend(model, backend)
    separate(operators)
    release(model)
    release_forward(model)
    chosen = EXECUTING.get(record.name)
    for operator in operators.values():
        operator.backend = operator.executor = None
        operator.channels_last = False
        operator.device_type = "cpu" if chosen is None else chosen.device_type()
    if chosen is not None:
        record = _execute_on(chosen, model, operators, record, example)
    for name, operator in operators.items():
        if name in record.native:
            operator.refresh_cache(keep=False)
        elif operator._buffers.get("weight_cache") is None:
            operator.refresh()
    if record.name == "cpu":
        record = replace(record, uncaptured=_capture(model, record, capture))
    if captured_of(model) is None:
        take(model, Forward)
    setattr(model, ATTRIBUTE, record)
    return record


def _capture(model: nn.Module, record: BackendRecord, wanted: bool) -> str | None:
    """Capture a model, if that is asked for and possible; returns why not."""
    if not wanted:
        return "not asked for"
    if record.fallbacks:
        name = next(iter(record.fallbacks))
        return f"{len(record.fallbacks)} operators are simulated, the first: {name}"
    return capture_model(model)


def _execute_on(
    backend: Backend,
    model: nn.Module,
    operators: dict[str, QuantOperator],
    record: BackendRecord,
    example: Any | None,
) -> BackendRecord:
    backend.prepare(model)
    native = {name: operators[name] for name in record.native}
    unfused = _fuse(model, operators, native, example, backend)
    declared = getattr(getattr(model, "info", None), "channels_last", False)
    for operator in native.values():
        operator.channels_last = declared
        operator.backend = backend.build
        operator.executor = backend.build(operator)
    shared = [id(operator.shared) for operator in native.values() if operator.shared is not None]
    return BackendRecord(
        record.name,
        record.reason,
        record.native,
        record.fallbacks,
        record.instruction_set,
        fused=sum(len(operator.followers) for operator in native.values()),
        sharing=len(shared) - len(set(shared)),
        unfused=unfused,
        float_operators=backend.take_float_operators(model),
    )


def _fuse(
    model: nn.Module,
    operators: dict[str, QuantOperator],
    native: dict[str, QuantOperator],
    example: Any | None,
    backend: Backend,
) -> str | None:
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
    fuse(native, model, graph, backend.sharing_key, gates=backend.fuses_gates)
    return None


def predict_backend(model: nn.Module, backend: str = "auto") -> BackendRecord:
    """What `use_backend` would do with a quantized model; nothing is packed."""
    if backend == "reference":
        return BackendRecord("reference", "asked for")
    chosen = EXECUTING[PREFERRED if backend == "auto" else backend]
    operators = quant_operators(model)
    reason = chosen.unavailable_reason(model)
    reasons: dict[str, str | None] = {}
    if reason is None:
        reasons = {name: chosen.unsupported_reason(op) for name, op in operators.items()}
        if not operators:
            reason = "the model has no quantized operators, which only the reference executes"
        elif None not in reasons.values():
            first = next(iter(reasons.values()))
            reason = f"no operator of the model can run there (the first: {first})"
    if reason is not None:
        if backend != "auto":
            raise UnsupportedError(f"backend {backend!r} cannot run: {reason}")
        return BackendRecord("reference", reason)
    fallbacks = {name: why for name, why in reasons.items() if why is not None}
    native = tuple(name for name in operators if name not in fallbacks)
    why = chosen.describe() if backend == "auto" else "asked for"
    return BackendRecord(chosen.name, why, native, fallbacks, chosen.instruction_set())


def backend_of(model: nn.Module) -> BackendRecord | None:
    """The record of a model that was put on a backend, with what was captured so far."""
    record: BackendRecord | None = getattr(model, ATTRIBUTE, None)
    captured = captured_of(model)
    if record is None or captured is None or not captured.met:
        return record
    programs = tuple(map(repr, captured.programs))
    return replace(record, programs=programs, uncaptured=captured.refusal)
