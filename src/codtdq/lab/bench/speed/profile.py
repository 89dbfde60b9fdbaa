"""Where the time of a forward pass goes: operators of the network, torch functions between them.

Leaf modules are timed by hooks. Torch functions that are called outside of all leaf modules
(attention products, additions, copies) are timed by name. What is left is Python, and code that
neither a module nor a torch function contains.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from codtdq.lab.bench.speed.timing import fixed_threads
from codtdq.planning.roles import QUANTIZABLE, kind_of

REST = "python and the rest"


@dataclass(frozen=True)
class Row:
    """One kind of work in both networks. Times in milliseconds per pass."""

    what: str
    calls: int  # in the baseline; where it has none, in the other
    baseline_ms: float
    other_ms: float

    @property
    def speedup(self) -> float | None:
        """None where one side does not do this work on its own, e.g. because it is fused."""
        return self.baseline_ms / self.other_ms if self.baseline_ms and self.other_ms else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            "what": self.what,
            "calls": self.calls,
            "baseline_ms": self.baseline_ms,
            "other_ms": self.other_ms,
            "speedup": self.speedup,
        }


@dataclass
class Pass:
    """Seconds and calls by heading in one forward pass."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, heading: str, seconds: float) -> None:
        """Count one call."""
        self.seconds[heading] = self.seconds.get(heading, 0.0) + seconds
        self.calls[heading] = self.calls.get(heading, 0) + 1


def run_profile(
    baseline: nn.Module, other: nn.Module, images: Tensor, *, repeats: int = 5
) -> list[Row]:
    """Both networks pass by pass in turns; medians, the largest time of `other` first."""
    labels = leaf_labels(baseline)  # of the float network: both sides under the same heading
    passes: dict[str, list[Pass]] = {"baseline": [], "other": []}
    for turn in range(repeats + 1):
        for side, model in (("baseline", baseline), ("other", other)):
            found = one_pass(model, images, labels)
            if turn:  # the first one warms up
                passes[side].append(found)
    headings = {key for side in passes.values() for found in side for key in found.seconds}

    def median(side: str, heading: str) -> float:
        return 1e3 * statistics.median(found.seconds.get(heading, 0.0) for found in passes[side])

    rows = [
        Row(
            heading,
            passes["baseline"][0].calls.get(heading) or passes["other"][0].calls.get(heading, 0),
            median("baseline", heading),
            median("other", heading),
        )
        for heading in headings
    ]
    return sorted(rows, key=lambda row: (-row.other_ms, -row.baseline_ms, row.what))


def compare(baseline: nn.Module, other: nn.Module, images: Tensor, threads: int) -> dict[str, Any]:
    """Return a profile, JSON-ready: rows, their sums by kind of operator, and the totals."""
    with fixed_threads(threads):
        rows = run_profile(baseline, other, images)
    return {
        "threads": threads,
        "rows": [row.to_dict() for row in rows],
        "kinds": [row.to_dict() for row in summed(rows)],
        "baseline_ms": sum(row.baseline_ms for row in rows),
        "other_ms": sum(row.other_ms for row in rows),
    }


def summed(rows: list[Row]) -> list[Row]:
    """The same by kind of operator: one row for all `linear`, one for all `conv`, and so on."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.what if row.what == REST else row.what.split()[0], []).append(row)
    result = [
        Row(
            kind,
            sum(row.calls for row in members),
            sum(row.baseline_ms for row in members),
            sum(row.other_ms for row in members),
        )
        for kind, members in kinds.items()
    ]
    return sorted(result, key=lambda row: (-row.other_ms, -row.baseline_ms, row.what))


def leaf_labels(model: nn.Module) -> dict[str, str]:
    """Return the heading of every leaf module."""
    return {
        name: label_of(module)
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    }


def label_of(module: nn.Module) -> str:
    """E.g. `linear 128->512`, `conv 256->256 3x3 d4`, `LayerNorm`."""
    if isinstance(module, nn.Linear):
        return f"linear {module.in_features}->{module.out_features}"
    if isinstance(module, QUANTIZABLE):
        kernel = "x".join(map(str, module.kernel_size))  # type: ignore[arg-type]
        text = f"{kind_of(module)} {module.in_channels}->{module.out_channels} {kernel}"
        dilation = max(module.dilation)  # type: ignore[arg-type]
        return text if dilation == 1 else f"{text} d{dilation}"
    return type(module).__name__


def one_pass(model: nn.Module, images: Tensor, labels: Mapping[str, str]) -> Pass:
    """Time one forward pass; the headings add up to the whole of it."""
    found = Pass()
    with _timed_leaves(model, labels, found) as depth, _Functions(found, depth):
        with torch.inference_mode():
            begin = time.perf_counter()
            model(images)
            total = time.perf_counter() - begin
    found.seconds[REST] = max(0.0, total - sum(found.seconds.values()))
    found.calls[REST] = 1
    return found


class _Functions(TorchFunctionMode):
    """Times torch functions called by the network itself: not inside a leaf or one another."""

    def __init__(self, found: Pass, depth: list[float]) -> None:
        super().__init__()
        self._found, self._depth, self._busy = found, depth, False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _function_name(func)
        # reading an attribute such as a shape is Python's work, not a function's
        if self._depth or self._busy or name.endswith("__get__"):
            return func(*args, **kwargs)
        self._busy = True
        begin = time.perf_counter()
        try:
            return func(*args, **kwargs)
        finally:
            self._busy = False
            self._found.add(name, time.perf_counter() - begin)


def _function_name(func: Callable[..., Any]) -> str:
    """E.g. `torch.cat`, `torch.Tensor.add`."""
    return str(resolve_name(func) or getattr(func, "__name__", func))


@contextmanager
def _timed_leaves(
    model: nn.Module, labels: Mapping[str, str], found: Pass
) -> Iterator[list[float]]:
    """Time every call of a leaf module; yields the stack of leaves that are running."""
    running: list[float] = []
    handles = []

    def enter(module: nn.Module, args: Any) -> None:
        running.append(time.perf_counter())

    def leave(label: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            found.add(label, time.perf_counter() - running.pop())

        return hook

    for name, module in model.named_modules():
        if name in labels:
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave(labels[name])))
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()
