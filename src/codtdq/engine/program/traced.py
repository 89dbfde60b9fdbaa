"""Record a forward pass without computing it: tensors that know their shape, and who made them.

The model runs once on a `Traced` stand-in for its input. Whatever it does with a stand-in becomes
a node; whatever it does with other tensors (weights, tables, positions) is computed as ever, and
its results are constants of the recording.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakIdKeyDictionary

from codtdq.engine.program.shapes import SHAPES
from codtdq.errors import UnsupportedError
from codtdq.planning.trees import leaves, mapped


class NotCapturable(UnsupportedError):
    """Why a model cannot be recorded, or a recording cannot be lowered."""


@dataclass(eq=False)
class Value:
    """A tensor that depends on the input."""

    shape: tuple[int, ...]
    maker: Node | None = field(default=None, repr=False)  # None: an input


@dataclass(eq=False)
class Node:
    """One operation: of torch, by its name, or of a quantized operator."""

    name: str  # aten.add.Tensor, quantized, deform3x3, ...
    args: tuple[Any, ...]  # values, tensors (constants), numbers, lists of these
    settings: dict[str, Any] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)

    def inputs(self) -> list[Value]:
        """The values that it reads."""
        return [one for one in leaves((self.args, self.settings)) if isinstance(one, Value)]


@dataclass
class Recording:
    """Nodes in the order of the run, its inputs, and what the model returned."""

    inputs: list[Value]
    nodes: list[Node]
    outputs: list[Any]  # leaves: values, tensors, anything else
    structure: Any  # of the outputs


# Results depend on the shape only: they are made anew, as constants.
_LIKE = {
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
}


# By name of the operation: what makes the constants of its node smaller, while others are not yet
# computed. All of them at once, as the model makes them, may be larger than its weights. The list
# is its own, one for each recording.
COMPACTIONS: dict[str, Callable[[Node, list[Tensor]], None]] = {}


class Recorder:
    """Collects nodes while a model runs."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self._compacted: dict[str, list[Tensor]] = {}
        self._metas: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._sharing: dict[int, list[weakref.ref[Traced]]] = {}  # meta storage -> who views it

    def input(self, example: Tensor) -> Traced:
        """A stand-in for an input of the model."""
        value = Value(tuple(example.shape))
        self.inputs.append(value)
        return self._wrap(torch.empty(example.shape, device="meta"), value)

    def record(
        self, name: str, args: tuple[Any, ...], shape: Iterable[int], **settings: Any
    ) -> Traced:
        """A node that an operator describes itself, with one dense result."""
        node = Node(name, self._plain(args), self._plain(settings))
        self.nodes.append(node)
        meta = torch.empty(tuple(shape), device="meta")
        return self._wrap(meta, self._output(node, meta))

    def dispatch(self, function: Any, args: Any, kwargs: Any) -> Any:
        """One call of torch."""
        name = str(function)
        short = name.split(".")[1]
        if short in _LIKE:
            return function(*mapped(_blank, args), **mapped(_blank, kwargs))
        if function is torch.ops.aten._local_scalar_dense.default:
            raise NotCapturable("its course depends on values (a number was taken out of a tensor)")
        if function is torch.ops.aten.as_strided_.default and _is_as_it_was(*args, **kwargs):
            return args[0]
        written = [
            given
            for given, argument in zip(args, function._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor in leaves((args, kwargs)):
            _check_readable(tensor)
        meta = mapped(self._meta, (args, kwargs))
        try:
            found = SHAPES.get(name, function)(*meta[0], **meta[1])
        except NotImplementedError as error:
            raise NotCapturable(f"{name} has no shape without values") from error
        node = Node(name, self._plain(args), self._plain(kwargs))
        if name in COMPACTIONS:
            COMPACTIONS[name](node, self._compacted.setdefault(name, []))
        self.nodes.append(node)
        if written:
            return self._overwrite(written, node, name)
        return mapped(lambda leaf: self._result(node, leaf), found)

    def _result(self, node: Node, meta: Any) -> Any:
        if not isinstance(meta, Tensor):
            return meta
        return self._wrap(meta, self._output(node, meta))

    def _output(self, node: Node, meta: Tensor) -> Value:
        value = Value(tuple(meta.shape), node)
        node.outputs.append(value)
        return value

    def _overwrite(self, written: list[Any], node: Node, name: str) -> Any:
        """An operation in place: its tensor stands for the new values from now on."""
        target = written[0]
        if len(written) > 1 or not isinstance(target, Traced):
            raise NotCapturable(f"{name} writes into a tensor that does not come from the input")
        for other in self._sharing.get(_storage(target.meta), []):
            found = other()
            if found is not None and found is not target:
                found.stale = name
        target.value = self._output(node, target.meta)
        return target

    def _wrap(self, meta: Tensor, value: Value) -> Traced:
        made = Traced(meta, value, self)
        self._sharing.setdefault(_storage(meta), []).append(weakref.ref(made))
        return made

    def _meta(self, x: Any) -> Any:
        if isinstance(x, Traced):
            return x.meta
        if not isinstance(x, Tensor):
            return x
        known = self._metas.get(x)
        if known is None:
            known = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            self._metas[x] = known
        return known

    def _plain(self, tree: Any) -> Any:
        return mapped(lambda x: x.value if isinstance(x, Traced) else x, tree)


class Traced(Tensor):
    """A stand-in: the shape, strides and type of a tensor, without memory."""

    meta: Tensor
    value: Value
    recorder: Recorder
    stale: str | None  # the operation that changed what this is a view of
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, meta: Tensor, value: Value, recorder: Recorder) -> Traced:
        """A tensor on the CPU, as far as anyone can tell."""
        made: Traced = Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cpu"),
        )
        made.meta, made.value, made.recorder, made.stale = meta, value, recorder, None
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Traced({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotCapturable(f"{function} is called on a recorded tensor after the recording")


class _Dispatch(TorchDispatchMode):
    """Hands calls on stand-ins to the recorder.

    A mode, although stand-ins could tell by themselves: for them torch would import its library
    of distributed tensors first, which takes a second.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, Traced) for kind in types):
            return self._recorder.dispatch(function, args, kwargs)
        return function(*args, **kwargs)


# torch wraps it to hide it from its compiler, which it imports at the first call: two seconds
_Dispatch.__torch_dispatch__ = getattr(  # type: ignore[method-assign]
    _Dispatch.__torch_dispatch__, "__wrapped__", _Dispatch.__torch_dispatch__
)


def record(forward: Callable[..., Any], examples: tuple[Tensor, ...]) -> Recording:
    """What a forward pass does with inputs of these shapes."""
    recorder = Recorder()
    # under inference mode torch hands over whole functions, not what they consist of
    with torch.inference_mode(False), torch.no_grad(), _Dispatch(recorder):
        try:
            outputs = forward(*(recorder.input(one) for one in examples))
        except NotCapturable:
            raise
        except Exception as error:  # a model may do with its input whatever it likes
            text = " ".join(str(error).split())
            raise NotCapturable(f"the recording failed: {type(error).__name__}: {text}") from error
    found, structure = tree_flatten(outputs)
    for leaf in found:
        _check_readable(leaf)
    plain = [leaf.value if isinstance(leaf, Traced) else leaf for leaf in found]
    return Recording(recorder.inputs, recorder.nodes, plain, structure)


def _check_readable(x: Any) -> None:
    """Refuse stand-ins of other types than float32, and those whose memory has changed."""
    if not isinstance(x, Traced):
        return
    if x.meta.dtype is not torch.float32:
        raise NotCapturable(f"it computes in {x.meta.dtype} from its input")
    if x.stale is not None:
        raise NotCapturable(f"it reads a view of a tensor that {x.stale} has changed")


def _is_as_it_was(
    x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> bool:
    """Whether new strides change nothing but those of axes of length one.

    So torch marks a pooled map [B, C, 1, 1] as channels-last.
    """
    if not isinstance(x, Traced) or tuple(size) != tuple(x.shape):
        return False
    moved = storage_offset is not None and storage_offset != x.storage_offset()
    return not moved and all(n == 1 or a == b for n, a, b in zip(size, stride, x.stride()))


def _storage(meta: Tensor) -> int:
    return int(meta.untyped_storage()._cdata)


def _blank(x: Any) -> Any:
    return torch.empty_strided(x.shape, x.stride()) if isinstance(x, Traced) else x
