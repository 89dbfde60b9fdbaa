"""What feeds what: found by running the model once and following its tensors.

For every operator: what produced its input (a norm, GELU, another operator, ...), which operators
read the same tensor, in which order they run, and which module alone reads its output (a batch
norm, an activation: what an engine may fuse). For every norm: which operators read it, and whether
nothing else does, so that its affine part may be folded into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from codtdq.declarations import declaration_of
from codtdq.errors import ConfigError
from codtdq.planning.roles import NORMS, operators
from codtdq.planning.trees import leaves

# Functions that move values about without changing them or mixing channels.
_TRANSPORT = frozenset(
    "view reshape permute transpose flatten unflatten contiguous clone unsqueeze squeeze expand "
    "roll movedim moveaxis swapaxes swapdims to float detach view_as reshape_as dropout "
    "__get__".split()
)
_PADDING = frozenset({"pad"})
_FOLLOWERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GELU, nn.ReLU)
_ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "relu_": "relu",
    "relu6": "relu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "scaled_dot_product_attention": "attention",
    "leaky_relu": "leaky_relu",
    "hardswish": "hardswish",
    "tanh": "tanh",
    "cat": "cat",
    "add": "sum",
    "__add__": "sum",
    "add_": "sum",
    "__iadd__": "sum",
    "interpolate": "resize",
    "avg_pool2d": "pool",
    "max_pool2d": "pool",
    "adaptive_avg_pool2d": "pool",
}


@dataclass(frozen=True)
class Source:
    """What made a tensor."""

    kind: str  # norm, operator, image, gelu, relu, attention, sum, cat, ..., other; or several
    name: str = ""  # of the norm or operator
    tensor: int = -1  # number of the tensor: equal for operators that read the same values
    padded: bool = False  # zeros were added on the way


@dataclass
class NormUse:
    """Where the output of a norm goes."""

    name: str
    channels: int
    consumers: list[str] = field(default_factory=list)  # quantizable operators, in order
    other_uses: list[str] = field(default_factory=list)  # functions that read it as well
    padded: list[str] = field(default_factory=list)  # consumers before which zeros are padded

    @property
    def exclusive(self) -> bool:
        """Whether operators of the same width are the only readers."""
        return bool(self.consumers) and not self.other_uses


@dataclass
class ModelGraph:
    """The traced facts."""

    inputs: dict[str, Source] = field(default_factory=dict)  # by operator
    norms: dict[str, NormUse] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # operators as they first run
    calls: dict[str, int] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)  # input channels by operator
    ranks: dict[str, int] = field(default_factory=dict)  # axes of the output; -1: they differ
    # operator or follower -> what alone reads its output: a batch norm, GELU, ReLU, or a module
    # that declares what it is `fused_as`
    followers: dict[str, str] = field(default_factory=dict)

    def sharing(self, name: str) -> list[str]:
        """All operators that read the same channels as `name`, itself included, in order."""
        tensor, width = self.inputs[name].tensor, self.widths[name]
        if tensor < 0:
            return [name]
        same = [other for other in self.order if self.inputs[other].tensor == tensor]
        return [other for other in same if self.widths[other] == width]


def trace(model: nn.Module, batch: Any, *, names: Iterable[str] | None = None) -> ModelGraph:
    """Run `model` once on `batch` (a tensor, a tuple of arguments or a dict) and follow it.

    names: the operators to follow; by default those that can be quantized.
    """
    if names is None:
        found = operators(model)
        names = [op.name for op in found if op.reason is None and op.kind != "other"]
    graph = ModelGraph()
    tracer = _Tracer(graph)
    handles = []
    norm_names = {n: m for n, m in model.named_modules() if isinstance(m, NORMS)}
    for name, norm in norm_names.items():
        graph.norms[name] = NormUse(name, _channels(norm))
        handles.append(norm.register_forward_hook(tracer.after_norm(name)))
    for name, module in model.named_modules():
        if isinstance(module, _FOLLOWERS) or declaration_of(module).fused_as:
            handles.append(module.register_forward_pre_hook(tracer.before_follower(name)))
            handles.append(module.register_forward_hook(tracer.after_follower(name)))
    for name in names:
        module = model.get_submodule(name)
        before = tracer.before_operator(name)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(tracer.after_operator(name)))
    training = model.training
    try:
        if any(module.training for module in model.modules()):
            model.eval()
        with torch.no_grad(), tracer:
            for leaf in tree_leaves(batch):
                tracer.mark(leaf, "image")
            output = _call(model, batch)
        for leaf in tree_leaves(output):
            tracer.use(leaf, "the model's output")
    finally:
        if training:
            model.train()
        for handle in handles:
            handle.remove()
    if not graph.order:
        raise ConfigError(f"{type(model).__name__} ran no Linear or Conv that could be quantized")
    graph.widths = {name: _inputs(model, name) for name in graph.order}
    graph.followers = tracer.followers()
    tracer.part_what_differs()
    for norm_use in graph.norms.values():
        wide = [n for n in norm_use.consumers if graph.widths[n] != norm_use.channels]
        norm_use.other_uses += [f"{name} (another width)" for name in wide]
    return graph


class _Tracer(TorchFunctionMode):
    """Keeps the source of every living tensor."""

    def __init__(self, graph: ModelGraph) -> None:
        super().__init__()
        self._graph = graph
        self._sources: Any = WeakTensorKeyDictionary()
        self._count = 0
        self._inside = 0  # operators that are running: their own function calls are no uses
        self._uses: dict[int, int] = {}  # by number of the tensor
        self._made: dict[int, str] = {}  # tensor number -> operator or follower that made it
        self._read: dict[str, list[int]] = {}  # follower -> tensors that it read
        self._tensors: dict[str, list[int]] = {}  # operator -> tensors that it read, by call
        self._fresh: Any = WeakTensorKeyDictionary()  # outputs of operators, not moved since

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if self._inside:
            return output
        made = [t for t in leaves(output) if isinstance(t, Tensor)]
        if not made:  # most calls ask for a shape
            return output
        name = getattr(func, "__name__", "")
        tensors = [t for t in leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        if not tensors:
            return output
        source = self._sources.get(tensors[0])
        if name in _TRANSPORT or (name in _PADDING and _pads_zeros(args, kwargs or {})):
            if isinstance(output, Tensor) and output is not tensors[0] and source is not None:
                padded = source.padded or name in _PADDING
                self._sources[output] = Source(source.kind, source.name, source.tensor, padded)
            return output
        for tensor in tensors:
            self.use(tensor, name)
        for tensor in made:
            self.mark(tensor, _ACTIVATIONS.get(name, "other"))
        return output

    def mark(self, tensor: Any, kind: str, name: str = "") -> None:
        """Give a tensor a new source."""
        if isinstance(tensor, Tensor):
            self._sources[tensor] = Source(kind, name, self._count)
            self._count += 1

    def use(self, tensor: Any, by: str) -> None:
        """Note that something other than an operator reads a tensor."""
        source = self._sources.get(tensor) if isinstance(tensor, Tensor) else None
        if source is None:
            return
        self._uses[source.tensor] = self._uses.get(source.tensor, 0) + 1
        if source.kind == "norm":
            self._graph.norms[source.name].other_uses.append(by)

    def followers(self) -> dict[str, str]:
        """Makers whose every output is read once, by one and the same follower, and only there."""
        made: dict[str, list[int]] = {}
        for number, maker in self._made.items():
            made.setdefault(maker, []).append(number)
        found: dict[str, str] = {}
        for name, read in self._read.items():
            makers = {self._made.get(number, "") for number in read}
            maker = makers.pop() if len(makers) == 1 else ""
            outputs = made.get(maker, [])
            once = all(self._uses.get(number) == 1 for number in outputs)
            if maker and once and sorted(outputs) == sorted(read):
                found[maker] = name
        return found

    def part_what_differs(self) -> None:
        """Operators share their input only if they do in every call."""
        inputs = self._graph.inputs
        readers: dict[int, list[str]] = {}
        for name, source in inputs.items():
            readers.setdefault(source.tensor, []).append(name)
        for names in readers.values():
            if any(self._tensors[name] != self._tensors[names[0]] for name in names):
                for name in names:
                    inputs[name] = replace(inputs[name], tensor=-1)

    def before_follower(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            source = self._sources.get(args[0]) if args else None
            number = -1 if source is None or source.padded else source.tensor
            if isinstance(module, NORMS) and args[0] not in self._fresh:
                number = -1  # its channels may be another axis of what the operator made
            self._read.setdefault(name, []).append(number)

        return hook

    def after_follower(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            source = self._sources.get(output)
            if source is not None:
                self._made[source.tensor] = name

        return hook

    def after_norm(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.mark(output, "norm", name)

        return hook

    def before_operator(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            x = args[0] if args else kwargs["input"]
            source = self._sources.get(x) or Source("other")
            graph = self._graph
            known = graph.inputs.get(name)
            alike = known is None or (known.kind, known.name) == (source.kind, source.name)
            if known is None:
                graph.order.append(name)
                graph.inputs[name] = source
            elif alike:  # a part of the model that runs twice: the same norm, another tensor
                padded = known.padded or source.padded
                graph.inputs[name] = Source(known.kind, known.name, known.tensor, padded)
            else:
                graph.inputs[name] = Source("several")
            self._tensors.setdefault(name, []).append(source.tensor)
            graph.calls[name] = graph.calls.get(name, 0) + 1
            self._uses[source.tensor] = self._uses.get(source.tensor, 0) + 1
            if source.kind == "norm":
                norm = graph.norms[source.name]
                if known is None:
                    norm.consumers.append(name)
                if not alike:
                    norm.other_uses.append(f"{name} (which has other inputs too)")
                if source.padded and name not in norm.padded:
                    norm.padded.append(name)
            if known is not None and known.kind == "norm" and not alike:
                graph.norms[known.name].other_uses.append(f"{name} (which has other inputs too)")
            self._inside += 1

        return hook

    def after_operator(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._inside -= 1
            ranks = self._graph.ranks
            ranks[name] = output.ndim if ranks.get(name, output.ndim) == output.ndim else -1
            self.mark(output, "operator", name)
            self._made[self._count - 1] = name
            self._fresh[output] = True

        return hook


def _pads_zeros(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of F.pad adds zeros; other values do not survive a rescaling."""
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    value = kwargs.get("value", args[3] if len(args) > 3 else None)
    return mode == "constant" and not value


def _channels(norm: nn.Module) -> int:
    shape = getattr(norm, "normalized_shape", None)
    if shape is not None:
        return int(shape[-1]) if len(shape) == 1 else -1
    return int(getattr(norm, "num_channels", getattr(norm, "num_features", -1)))


def _inputs(model: nn.Module, name: str) -> int:
    module = model.get_submodule(name)
    return int(getattr(module, "in_features", getattr(module, "in_channels", -1)))


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)
