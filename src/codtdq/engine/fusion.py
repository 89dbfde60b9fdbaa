"""Work that the engine does along with a product: what follows it, and what it shares.

A batch norm, GELU or ReLU that alone reads an operator's output is computed in the epilogue of its
product, a gate (GELU of half of the channels times the others) in that of a depthwise convolution;
operators that read the same tensor quantize it once. These facts come from a trace.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.declarations import declaration_of
from codtdq.operators.backed import BackedOperator
from codtdq.planning.trace import ModelGraph

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
GATE = "gated_gelu"  # the engine's name for it


class SharedInput:
    """The codes of a tensor that several operators read, kept from the first to the last."""

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self._local = threading.local()  # one model may run in several threads

    def codes(self, x: Tensor, encode: Callable[[Tensor], Any]) -> Any:
        """The codes of x: those kept, if they are of the very same values."""
        kept, facts = getattr(self._local, "kept", None), _version(x)
        if kept is not None and _same_memory(kept[0], x) and kept[1] == facts:
            codes, left = kept[2], kept[3] - 1
        else:
            codes, left = encode(x), self._readers - 1
        # x is kept too: while it lives, nothing else can lie at its address
        self._local.kept = (x, facts, codes, left) if left else None
        return codes

    def __deepcopy__(self, memo: object) -> SharedInput:
        return SharedInput(self._readers)

    def __reduce__(self) -> tuple[type[SharedInput], tuple[int]]:
        return SharedInput, (self._readers,)


@contextlib.contextmanager
def blank_products(operators: Iterable[BackedOperator]) -> Iterator[None]:
    """Let operators give zeros of the right shape: a trace asks for the way, not for values."""
    changed = list(operators)
    try:
        for operator in changed:
            operator.executor = _Blank(operator)
            operator.backend = _Blank
        yield
    finally:
        for operator in changed:
            operator.backend = operator.executor = None


class _Blank:
    def __init__(self, operator: Any) -> None:
        self._operator = operator

    def __call__(self, x: Tensor) -> Tensor:
        operator = self._operator
        if isinstance(operator, nn.Linear):
            return x.new_zeros(*x.shape[:-1], operator.out_features)
        settings = (operator.kernel_size, operator.stride, operator.padding, operator.dilation)
        sides = [
            (size + 2 * pad - gap * (side - 1) - 1) // step + 1
            for size, side, step, pad, gap in zip(x.shape[2:], *settings)
        ]
        return x.new_zeros(x.shape[0], operator.out_channels, *sides)


def fuse(
    operators: Mapping[str, BackedOperator],
    model: nn.Module,
    graph: ModelGraph,
    encoding: Callable[[Any], Hashable],
    *,
    gates: bool = False,
) -> None:
    """Give operators their followers and what they share; undone by `separate`.

    encoding: what two operators must agree on to share codes. gates: whether depthwise convolutions
    take the gate that follows them.
    """
    for name, operator in operators.items():
        followers = _followers(name, model, graph)
        if not gates and activation_of(followers) == GATE:
            followers = followers[:-1]
        if followers:
            operator.followers = followers
            for follower in followers:
                follower.forward = passed
    sharing: dict[Hashable, list[BackedOperator]] = {}
    for name, operator in operators.items():
        source = graph.inputs.get(name)
        if source is not None and source.tensor >= 0 and graph.calls[name] == 1:
            sharing.setdefault((source.tensor, encoding(operator)), []).append(operator)
    for readers in sharing.values():
        if len(readers) > 1:
            shared = SharedInput(len(readers))
            for operator in readers:
                operator.shared = shared


def separate(operators: Mapping[str, BackedOperator]) -> None:
    """Undo `fuse`."""
    for operator in operators.values():
        for follower in operator.followers:
            follower.__dict__.pop("forward", None)
        operator.followers, operator.shared = (), None


def passed(x: Tensor) -> Tensor:
    """What a follower does once its work is done elsewhere."""
    return x


def affine_of(followers: tuple[nn.Module, ...]) -> tuple[Tensor, Tensor] | None:
    """(factor, offset) of the batch norm among the followers, or None without one."""
    for module in followers:
        if isinstance(module, NORMS):
            assert module.running_mean is not None and module.running_var is not None
            factor = (module.running_var.double() + module.eps).rsqrt()
            if module.weight is not None:
                factor = factor * module.weight.detach().double()
            offset = -module.running_mean.double() * factor
            if module.bias is not None:
                offset = offset + module.bias.detach().double()
            return factor, offset
    return None


def activation_of(followers: tuple[nn.Module, ...]) -> str:
    """The engine's name of the activation among the followers."""
    for module in followers:
        if isinstance(module, nn.GELU):
            return "gelu"
        if isinstance(module, nn.ReLU):
            return "relu"
        if declaration_of(module).fused_as == GATE:
            return GATE
    return "none"


def _followers(name: str, model: nn.Module, graph: ModelGraph) -> tuple[nn.Module, ...]:
    """A batch norm, an activation, or one after the other, behind an operator."""
    found: list[nn.Module] = []
    follower = graph.followers.get(name)
    linear = isinstance(model.get_submodule(name), nn.Linear)  # whose channels come last
    if follower is not None and _is_norm(model.get_submodule(follower)) and not linear:
        found.append(model.get_submodule(follower))
        follower = graph.followers.get(follower)
    operator = model.get_submodule(name)
    if follower is not None and _is_activation(model.get_submodule(follower), operator):
        found.append(model.get_submodule(follower))
    return tuple(found)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORMS) and module.running_mean is not None


def _is_activation(module: nn.Module, operator: nn.Module) -> bool:
    if declaration_of(module).fused_as == GATE:
        return (
            isinstance(operator, nn.Conv2d | nn.Conv1d)
            and operator.groups == operator.in_channels == operator.out_channels
        )
    return isinstance(module, nn.ReLU) or (
        isinstance(module, nn.GELU) and module.approximate == "none"
    )


def _version(x: Tensor) -> int:
    # inference tensors do not count; there the trace vouches that nothing writes in between
    return -1 if x.is_inference() else x._version


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() and _rows(a) == _rows(b))


def _rows(x: Tensor) -> tuple[int, ...] | torch.Size:
    """Where the tokens of x lie: equal for a map in channels-last order and its rows."""
    if x.ndim == 2:
        return (x.shape[0], x.shape[1], x.stride(0), x.stride(1))
    tokens = x.flatten(2)
    batch, _, distance = tokens.stride()
    if x.shape[0] > 1 and batch != tokens.shape[2] * distance:
        return (*x.shape, *x.stride())
    return (x.shape[0] * tokens.shape[2], x.shape[1], distance, tokens.stride(1))
