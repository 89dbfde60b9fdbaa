"""Constants of programs: each once, shared by all programs of a model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from codtdq.engine.cpu.products import extent
from codtdq.engine.program.layout import Buffer, Place, Space, Type
from codtdq.engine.program.tables import glance

if TYPE_CHECKING:
    from codtdq.engine.cpu.carriers import CarrierWeights

_TYPES = {
    torch.float32: Type.F32,
    torch.int8: Type.I8,
    torch.uint8: Type.U8,
    torch.int32: Type.I32,
    torch.int64: Type.I64,
}


@dataclass(frozen=True)
class Panels:
    """Float weights [depth, outputs] in panels of the instruction set in use."""

    depth: int
    outputs: int


@dataclass(frozen=True)
class WeightPart:
    """One of the arrays of a quantized weight in panels."""

    weight: CarrierWeights
    part: str  # packed, multiplier, factor


Form = Panels | WeightPart  # both known to the writer of program files


class Pool:
    """What programs of one model share: tensors that were packed or converted."""

    def __init__(self) -> None:
        self.made: dict[Hashable, tuple[tuple[Tensor, ...], Any]] = {}
        self._tables: dict[Hashable, list[Tensor]] = {}

    def get(self, key: Hashable, sources: tuple[Tensor, ...], make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for the same memory, which is kept."""
        full = (key, tuple(_identity(source) for source in sources))
        if full not in self.made:
            self.made[full] = (sources, make())
        return self.made[full][1]

    def same(self, table: Tensor) -> Tensor:
        """A table, or one with the same content that was met before."""
        alike = self._tables.setdefault(glance(table), [])
        found = next((one for one in alike if one is table or torch.equal(one, table)), None)
        if found is None:
            alike.append(table)
        return table if found is None else found


class Constants:
    """The constants of one program, by number."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.tensors: list[Tensor] = []
        self.forms: dict[int, Form] = {}  # of those that are packed for an instruction set
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def place(self, x: Tensor | float | int | bool) -> Place:
        """Where a tensor or number lies; float64 and whole numbers become float32."""
        if not isinstance(x, Tensor):
            number = float(x)
            tensor = self.pool.get(("number", number), (), lambda: torch.tensor([number]))
            return self.raw(tensor).reshape(()) or self.raw(tensor)
        if x.dtype is torch.float32:
            return self.raw(x)
        given = x
        return self.raw(
            self.pool.get("float", (given,), lambda: given.detach().float().contiguous())
        )

    def raw(self, x: Tensor) -> Place:
        """Where a tensor lies as it is."""
        x = x.detach()
        if x.device.type != "cpu" or x.dtype not in _TYPES or any(s < 0 for s in x.stride()):
            raise TypeError(f"a constant of {x.dtype} on {x.device}")
        key = (x.data_ptr(), extent_bytes(x))
        if key not in self._buffers:
            self._buffers[key] = Buffer(extent_bytes(x), Space.CONSTANT, len(self.tensors))
            self.tensors.append(x)
        strides = tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride()))
        return Place(self._buffers[key], tuple(x.shape), strides, type=_TYPES[x.dtype])

    def panels(self, x: Tensor, depth: int, outputs: int) -> Place:
        """Where packed float weights lie."""
        return self._packed(x, Panels(depth, outputs))

    def weight(self, weight: CarrierWeights) -> tuple[Place, Place | None, Place]:
        """Where the packed codes, the multipliers if there are any, and the factors lie."""
        multiplied = weight.multiplier.numel() > 0
        return (
            self._packed(weight.packed, WeightPart(weight, "packed")),
            self._packed(weight.multiplier, WeightPart(weight, "multiplier"))
            if multiplied
            else None,
            self._packed(weight.factor, WeightPart(weight, "factor")),
        )

    def _packed(self, x: Tensor, form: Form) -> Place:
        place = self.raw(x)
        self.forms[place.buffer.number] = form
        return place

    def made(self, key: Hashable, sources: tuple[Tensor, ...], make: Callable[[], Tensor]) -> Place:
        """Where a tensor lies that is made of others, once for all programs."""
        return self.raw(self.pool.get(key, sources, make))


def _identity(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def extent_bytes(x: Tensor) -> int:
    """Bytes from the first to the last element."""
    return extent(x) * x.element_size()
