"""What a network would do on a GPU: kernel launches and tensor work, from shapes alone.

The network runs on torch's meta device, where tensors have shapes and no values. Quantized
operators note the launches of their kernels; everything else shows up as torch operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from codtdq.api import preset
from codtdq.engine.fusion import blank_products, fuse
from codtdq.engine.triton.backend import TritonBackend
from codtdq.engine.triton.launch import Launch, recorded
from codtdq.methods import outline
from codtdq.models import model_info
from codtdq.models.registry import build_model
from codtdq.operators import quant_operators
from codtdq.planning.trace import trace

# no kernel; `_unsafe_view` is a view that does not say so
FREE = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "detach",
    "alias",
    "lift_fresh",
    "_unsafe_view",
)


@dataclass(frozen=True)
class TensorWork:
    """One torch operation: values it reads and writes, and floating-point operations."""

    name: str
    elements: int
    flops: int


@dataclass
class Survey:
    """One forward pass."""

    model: str
    batch: int
    size: int
    launches: dict[str, list[Launch]] = field(default_factory=dict)  # by operator
    rest: list[TensorWork] = field(default_factory=list)
    operators: tuple[str, ...] = ()  # all that are quantized
    fallbacks: dict[str, str] = field(default_factory=dict)


def float_survey(name: str, batch: int) -> Survey:
    """Survey the float network."""
    model = build_model(name, empty=True).to("meta")
    survey = Survey(name, batch, model_info(name).input_size)
    _run(model, survey)
    return survey


def quantized_survey(name: str, batch: int, config: str = "cod-tdq-per-tensor-conv") -> Survey:
    """Survey the network under a preset on the Triton kernels, fused as `use_backend` does."""
    model = build_model(name, empty=True).to("meta")
    sketched = outline(model, preset(config, model=name), torch.zeros(0))[1]
    assert sketched is not None
    model = sketched.to("meta").eval()
    survey = Survey(name, batch, model_info(name).input_size)
    operators = quant_operators(model)
    backend = TritonBackend()
    obstacles = {
        place: backend.unsupported_reason(operator) for place, operator in operators.items()
    }
    survey.fallbacks = {place: why for place, why in obstacles.items() if why is not None}
    survey.operators = tuple(operators)
    native = {place: operators[place] for place in operators if place not in survey.fallbacks}
    for operator in operators.values():
        operator.device_type = "meta"
    with blank_products(operators.values()):
        graph = trace(model, torch.zeros(1, 3, 64, 64, device="meta"), names=operators)
    fuse(native, model, graph, backend.sharing_key)
    for place, operator in native.items():
        operator.channels_last = getattr(model.info, "channels_last", False)
        operator.executor = _noting(backend.build(operator), place, survey)
        operator.backend = backend.build
    _run(model, survey)
    return survey


def launch_bytes(launch: Launch) -> int:
    """Return the bytes that a launch touches if it reads and writes every tensor once."""
    tensors = (value for value in launch.arguments.values() if isinstance(value, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def launch_int8_ops(launch: Launch) -> int:
    """Integer operations on tensor cores, padding included; 0 for kernels without them."""
    given = launch.arguments
    if "packed" not in given:
        return 0
    depth = given.get("taps", 1) * given["slabs"] * 32
    return 2 * given["rows"] * given["outputs"] * depth


class _Counting(TorchDispatchMode):
    def __init__(self, survey: Survey) -> None:
        super().__init__()
        self._survey = survey

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = [value.alias_info for value in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        name = func._schema.name.removeprefix("aten::")
        if not is_view and name not in FREE:
            tensors = list(_tensors((args, kwargs or {}, result)))
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
            elements = sum(tensor.numel() for tensor in tensors)
            self._survey.rest.append(TensorWork(name, elements, flops))
        return result


class _FusedAttention(TorchFunctionMode):
    """Attention as one kernel, which torch has for FP32 and FP16 on a GPU but not for meta."""

    def __init__(self, survey: Survey) -> None:
        super().__init__()
        self._survey = survey

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        result = query.new_empty(*query.shape[:-1], value.shape[-1])
        elements = sum(tensor.numel() for tensor in _tensors((args, kwargs or {}, result)))
        flops = 2 * query.numel() * key.shape[-2] + 2 * result.numel() * key.shape[-2]
        self._survey.rest.append(TensorWork("attention", elements, flops))
        return result


def _run(model: nn.Module, survey: Survey) -> None:
    images = torch.zeros(survey.batch, 3, survey.size, survey.size, device="meta")
    with torch.no_grad(), _Counting(survey), _FusedAttention(survey):
        model(images)


def _noting(
    executor: Callable[[Tensor], Tensor], place: str, survey: Survey
) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        with recorded() as launches:
            y = executor(x)
        survey.launches.setdefault(place, []).extend(launches)
        return y

    return run


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
