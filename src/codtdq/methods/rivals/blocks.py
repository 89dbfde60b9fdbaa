"""Blocks of a network for reconstruction: found from how its modules were called, not by name.

A module is a block if one forward pass calls it once, with a tensor first, if it returns one
tensor, and if it alone uses its 1 to `max_sites` operators. Anything else is opened, down to
single operators. Every operator is in one block; blocks stand in running order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from codtdq.methods.workbench import Workbench
from codtdq.operators.observing import run_model
from codtdq.planning.plan import Site

MAX_SITES = 12


@dataclass(frozen=True)
class Block:
    """Operators that are reconstructed together."""

    name: str  # of the module, in the model and in every copy of it
    sites: tuple[Site, ...]
    calls: int  # in one forward pass; more than one only for a single operator
    joinable: bool  # images stand along axis 0 of what it reads and gives
    shared: tuple[bool, ...] = ()  # tensor arguments that are the same for every image, in order

    @property
    def lone(self) -> bool:
        """Whether it is an operator of its own."""
        return len(self.sites) == 1 and self.sites[0].name == self.name


@dataclass
class _Call:
    tensors: list[tuple[int, ...]]  # shapes of all tensor arguments
    first: bool  # whether the first argument is a tensor
    output: tuple[int, ...] | None  # shape, if it is one tensor


@dataclass
class _Trace:
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    above: dict[str, list[frozenset[str]]] = field(default_factory=dict)  # modules around each call


def find_blocks(bench: Workbench, *, max_sites: int = MAX_SITES) -> list[Block]:
    """All blocks of the model on the workbench, traced with one and with two images."""
    batch = bench.first_batch()
    sites = bench.sites
    single = _trace(bench.model, batch)
    # with twice the image, what holds images along axis 0 is twice as long
    double = _trace(bench.model, torch.cat([batch, batch])) if isinstance(batch, Tensor) else None
    members = {id(site.module): site for site in sites}
    found: list[Block] = []

    def walk(name: str, module: nn.Module) -> None:
        inside = _sites_in(module, members)
        if not inside:
            return
        calls = single.calls.get(name, [])
        joinable = double is not None and _joinable(calls, double.calls.get(name, []))
        if id(module) in members:
            found.append(Block(name, (members[id(module)],), len(calls), joinable))
            return
        owns = all(name in around for site in inside for around in single.above[site.name])
        whole = len(calls) == 1 and calls[0].first and calls[0].output is not None
        fits = len(inside) <= max_sites and (joinable or double is None)
        if name and whole and owns and fits:
            shared = () if double is None else _shared(calls[0], double.calls[name][0])
            found.append(Block(name, tuple(inside), 1, joinable, shared))
            return
        for child, part in module.named_children():
            walk(f"{name}.{child}" if name else child, part)

    walk("", bench.model)
    place = {site.name: i for i, site in enumerate(sites)}
    taken: set[str] = set()
    result = []
    for block in sorted(found, key=lambda b: min(place[s.name] for s in b.sites)):
        if block.sites[0].name not in taken:  # a module under two names is met twice
            taken.update(site.name for site in block.sites)
            ordered = tuple(sorted(block.sites, key=lambda s: place[s.name]))
            result.append(dataclasses.replace(block, sites=ordered))
    return result


def _sites_in(module: nn.Module, members: dict[int, Site]) -> list[Site]:
    return [members[id(part)] for part in module.modules() if id(part) in members]


def _joinable(single: Sequence[_Call], double: Sequence[_Call]) -> bool:
    return len(single) == len(double) > 0 and all(_doubles(a, b) for a, b in zip(single, double))


def _doubles(one: _Call, two: _Call) -> bool:
    """Whether axis 0 of the first argument and of the output holds the images; other tensors hold
    them there too or are the same for every image.
    """
    if not one.first or one.output is None or two.output is None:
        return False
    if len(one.tensors) != len(two.tensors):
        return False
    needed = [(one.tensors[0], two.tensors[0]), (one.output, two.output)]
    extra = list(zip(one.tensors[1:], two.tensors[1:]))
    return all(twice(a, b) for a, b in needed) and all(a == b or twice(a, b) for a, b in extra)


def _shared(one: _Call, two: _Call) -> tuple[bool, ...]:
    return tuple(a == b for a, b in zip(one.tensors, two.tensors))


def twice(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether a shape is another one with axis 0 doubled."""
    return bool(one) and len(one) == len(two) and two[0] == 2 * one[0] and one[1:] == two[1:]


def _trace(model: nn.Module, batch: Any) -> _Trace:
    """Every module's calls in one forward pass, and which modules stood around each."""
    trace, stack = _Trace(), list[str]()

    def before(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            stack.append(name)
            trace.above.setdefault(name, []).append(frozenset(stack))

        return hook

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            stack.pop()
            shapes = [tuple(t.shape) for t in tensors_of((args, kwargs))]
            first = bool(args) and isinstance(args[0], Tensor)
            shape = tuple(output.shape) if isinstance(output, Tensor) else None
            trace.calls.setdefault(name, []).append(_Call(shapes, first, shape))

        return hook

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
        handles.append(module.register_forward_hook(after(name), with_kwargs=True))
    try:
        with torch.no_grad():
            run_model(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return trace


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments, in order."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
