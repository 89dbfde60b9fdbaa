"""Start kernels, or only note what would be started.

Every kernel is started by `launch`. Inside `recorded()` nothing runs: the launches are kept, so
that the very variants a model uses can be compiled for a device that is not there.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codtdq.engine.triton import device, tables
from codtdq.engine.triton.tables import Block, Table

POINTERS = {torch.float32: "*fp32", torch.int8: "*i8", torch.uint8: "*u8", torch.int32: "*i32"}


@dataclass(frozen=True)
class Launch:
    """One start of a kernel."""

    kernel: Any  # triton.JITFunction
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    block: Block

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options. Products are not contracted: codes must not depend on the compiler."""
        return {
            "num_warps": self.block.warps,
            "num_stages": self.block.stages,
            "enable_fp_fusion": False,
        }

    def signature(self) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
        """(types, constants, attributes) that Triton would specialize this launch on."""
        free = set(_unspecialized(self.kernel))
        types: dict[str, str] = {}
        constants = dict(self.constants)
        attributes: dict[tuple[int], Any] = {}
        for place, name in enumerate(self.kernel.arg_names):
            if name in self.constants:
                types[name] = "constexpr"
                continue
            value = self.arguments[name]
            if value is None or (isinstance(value, int) and value == 1 and name not in free):
                types[name], constants[name] = "constexpr", value
            elif isinstance(value, Tensor):
                types[name] = POINTERS[value.dtype]
                attributes[(place,)] = [["tt.divisibility", 16]]
            elif isinstance(value, int):
                types[name] = "i32"
                if value % 16 == 0 and name not in free:
                    attributes[(place,)] = [["tt.divisibility", 16]]
            else:
                types[name] = "fp32"
        return types, constants, attributes

    @property
    def variant(self) -> str:
        """Equal for launches that run the same machine code."""
        types, constants, attributes = self.signature()
        parts = (self.kernel.__name__, types, constants, attributes, self.options)
        return "|".join(str(part) for part in parts)


_recording: contextvars.ContextVar[list[Launch] | None] = contextvars.ContextVar(
    "recording", default=None
)


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Collect launches instead of running them; outputs are not filled in."""
    launches: list[Launch] = []
    token = _recording.set(launches)
    try:
        yield launches
    finally:
        _recording.reset(token)


def recording() -> bool:
    """Whether launches are only collected."""
    return _recording.get() is not None


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: dict[str, Any],
    constants: dict[str, Any],
    block: Block,
) -> None:
    """Run a kernel on the current device, or note it inside `recorded()`."""
    started = Launch(kernel, grid, arguments, constants, block)
    launches = _recording.get()
    if launches is not None:
        launches.append(started)
        return
    kernel[grid](**arguments, **constants, **started.options)


def chosen(
    kernel: str, table: Table, rows: int, outputs: int, key: Hashable, run: Callable[[Block], None]
) -> Block:
    """The block for a shape: from the table, or timed where that was asked for on a device."""
    if os.environ.get(tables.TUNE) == "1" and not recording() and device.present():
        return tables.tuned((kernel, key), table, run)
    return tables.block_for(table, rows, outputs)


@functools.cache
def _unspecialized(kernel: Any) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in kernel.params if parameter.do_not_specialize)
