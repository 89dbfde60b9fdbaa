"""A captured run: a model for inputs of one shape, as a single call of the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from ctypes import c_int64
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from codtdq.engine.cpu import library
from codtdq.engine.cpu.program_interface import Memory
from codtdq.engine.program import (
    rules_elementwise,
    rules_maps,
    rules_products,
    rules_quantized,
    rules_views,
)
from codtdq.engine.program.constants import Constants, Pool, extent_bytes
from codtdq.engine.program.encoding import Arrays
from codtdq.engine.program.lowering import Instruction, Lowering
from codtdq.engine.program.memory import plan
from codtdq.engine.program.passes import PASSES, improve
from codtdq.engine.program.traced import NotCapturable, Value, record
from codtdq.errors import UnsupportedError
from codtdq.memory import garbage_stays, release_memory
from codtdq.numerics.threads import one_thread, wanted_threads

RULE_FILES = (rules_elementwise, rules_maps, rules_products, rules_quantized, rules_views)


class Program:
    """A model as instructions of the engine; call it like the model."""

    @garbage_stays()
    @one_thread()  # what does not depend on the input is computed here, by torch
    def __init__(
        self,
        model: Callable[..., Any],
        examples: tuple[Tensor, ...],
        *,
        pool: Pool | None = None,
        passes: Collection[str] = PASSES,
    ) -> None:
        _check(examples)
        recording = record(model, examples)
        low = Lowering(recording, Constants(pool or Pool()))
        low.run()
        self._shapes = [tuple(example.shape) for example in examples]
        self._structure = recording.structure
        self._leaves: list[Any] = []
        self._results: list[tuple[int, ...]] = []
        self.passes = improve(low, self._place_outputs(low), passes)
        self.constants, self.forms = low.constants.tensors, low.constants.forms
        self.arena_bytes = plan(low.instructions)
        self.kinds = [one.kind for one in low.instructions]
        self.instruction_set = library.instruction_set()
        release_memory()  # of tables that were split, before there is the arena
        self._handle = self._build(low.instructions)

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the inputs."""
        return list(self._shapes)

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the results that depend on them."""
        return list(self._results)

    def _place_outputs(self, low: Lowering) -> list[tuple[int, Any]]:
        """Memory of the results: leaves are numbers of results, or what they are at any run."""
        found: list[tuple[int, Any]] = []
        numbers: dict[Value, int] = {}
        for leaf in low.recording.outputs:
            if not isinstance(leaf, Value):
                self._leaves.append(leaf)
                continue
            if leaf not in numbers:
                numbers[leaf] = len(self._results)
                self._results.append(leaf.shape)
                found.append((numbers[leaf], low.places[leaf]))
            self._leaves.append(_Result(numbers[leaf]))
        return found

    def _build(self, instructions: list[Instruction]) -> int:
        engine = library.engine()
        constants = [(one.data_ptr(), extent_bytes(one)) for one in self.constants]
        given, made = (
            [4 * _count(shape) for shape in group] for group in (self._shapes, self._results)
        )
        self.arrays = Arrays(instructions, constants, given, made, self.arena_bytes)
        code, handle, wrong = self.arrays.build(engine)
        if code or handle is None:
            what = instructions[wrong].kind if 0 <= wrong < len(instructions) else "its sizes"
            raise NotCapturable(f"the engine refused instruction {wrong} of a program: {what}")
        return handle

    def __call__(self, *inputs: Tensor) -> Any:
        """What the model returns, in fresh tensors."""
        results, arrays = self._prepare(inputs)
        code = library.engine().cod_program_run(self._handle, *arrays, wanted_threads())
        return self._finish(code, results)

    def profile(self, *inputs: Tensor, runs: int = 5) -> dict[str, float]:
        """Milliseconds of each kind of instruction: of each instruction, the least of some runs."""
        each = self.profile_instructions(*inputs, runs=runs)
        found: dict[str, float] = {}
        for kind, spent in zip(self.kinds, each):
            found[kind] = found.get(kind, 0.0) + spent
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def profile_instructions(self, *inputs: Tensor, runs: int = 5) -> list[float]:
        """Milliseconds of every instruction, the least of some runs."""
        best = [float("inf")] * len(self.kinds)
        for _ in range(runs):
            results, arrays = self._prepare(inputs)
            spent = (c_int64 * max(len(self.kinds), 1))()
            self._finish(
                library.engine().cod_program_profile(
                    self._handle, *arrays, wanted_threads(), spent, len(self.kinds)
                ),
                results,
            )
            best = [min(known, new / 1e6) for known, new in zip(best, spent)]
        return best

    def _prepare(
        self, inputs: tuple[Tensor, ...]
    ) -> tuple[list[Tensor], tuple[Any, int, Any, int]]:
        if [tuple(one.shape) for one in inputs] != self._shapes:
            given = ", ".join(str(tuple(one.shape)) for one in inputs)
            raise UnsupportedError(
                f"this program takes {', '.join(map(str, self._shapes))}; found {given}"
            )
        _check(inputs)
        dense = [one.detach().contiguous() for one in inputs]
        results = [torch.empty(shape) for shape in self._results]
        given, made = _memories(dense), _memories(results)
        return results, (given, len(dense), made, len(results))

    def _finish(self, code: int, results: list[Tensor]) -> Any:
        if code == 3:
            raise UnsupportedError(
                f"the program was made for {self.instruction_set}, "
                f"{library.instruction_set()} is in use; compile it again"
            )
        library.check(code)
        leaves = [
            results[leaf.number] if isinstance(leaf, _Result) else _fresh(leaf)
            for leaf in self._leaves
        ]
        return tree_unflatten(leaves, self._structure)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            library.engine().cod_program_free(handle)

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, shape)) for shape in self._shapes)
        fused = ", ".join(f"{count} in {name}" for name, count in self.passes.items() if count)
        return (
            f"Program({shapes}: {len(self.kinds)} instructions, {fused or 'nothing'} fused, "
            f"arena {self.arena_bytes / 2**20:.1f} MiB)"
        )


class _Result:
    def __init__(self, number: int) -> None:
        self.number = number


def _fresh(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _check(inputs: tuple[Any, ...]) -> None:
    for one in inputs:
        plain = isinstance(one, Tensor) and one.dtype is torch.float32
        if not plain or one.device.type != "cpu" or not one.numel():
            raise NotCapturable("programs take float32 tensors on the CPU that are not empty")


@cache
def _memory_type(count: int) -> Any:
    """An array of buffers: ctypes would make the type anew, and leave it to the collector."""
    return Memory * count


def _memories(tensors: list[Tensor]) -> Any:
    """Tensors without gaps as buffers of the engine, which keep them alive."""
    sizes = [Memory(one.data_ptr(), one.numel() * one.element_size()) for one in tensors]
    found: Any = _memory_type(max(len(sizes), 1))(*sizes)
    found.kept = tensors
    return found


def _count(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found
