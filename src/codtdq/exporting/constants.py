"""Constants of program files: weights in their own order, each content once.

What a program holds in panels of an instruction set is unpacked: who reads the file packs it for
the set that it finds. `csrc/program_file.cpp` reads what is written here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.program.constants import Form, Panels, WeightPart
from codtdq.engine.program.program import Program
from codtdq.numerics.packing import pack

RAW, PANELS, CARRIER_WEIGHT, PALETTE = range(4)
TYPES = {"float32": 0, "int8": 1, "uint8": 2, "int32": 3, "int64": 4}  # COD_TYPE_*
POOLS = {"float32": "f32", "int8": "i8", "uint8": "u8", "uint16": "u16", "int32": "i32"}
POOLS |= {"int64": "i64"}
FEWEST = 64  # values of a table that may become a palette


class _Palette(NamedTuple):
    sizes: tuple[int, int, int, int]  # outer, groups, inner, entries
    codes: NDArray[np.generic]
    table: NDArray[np.float32]


def _bytes(one: _Palette) -> int:
    return one.codes.nbytes + one.table.nbytes


class ConstantTable:
    """Records and values of the constants of several programs."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.count = 0  # records
        self._values: dict[str, list[bytes]] = {}
        self._buffers = 0  # constants that a reader makes of the records
        self._known: dict[object, int] = {}
        self._weights: dict[int, dict[str, int]] = {}

    def numbers(self, program: Program) -> list[int]:
        """The numbers that the constants of a program have in the file."""
        return [
            self._number(tensor, program.forms.get(index))
            for index, tensor in enumerate(program.constants)
        ]

    def tensors(self) -> dict[str, bytes]:
        """The values of each type, by name."""
        return {name: b"".join(parts) for name, parts in sorted(self._values.items())}

    def _number(self, tensor: Tensor, form: Form | None) -> int:
        if isinstance(form, WeightPart):
            if id(form.weight) not in self._weights:
                self._weights[id(form.weight)] = self._weight(form)
            return self._weights[id(form.weight)][form.part]
        memory = _memory(tensor)
        key = (memory.dtype.str, form, hashlib.sha256(memory.data).digest())
        shape = tuple(tensor.shape)
        return self._once(
            key, lambda: self._panels(memory, form) if form else self._raw(memory, shape)
        )

    def _once(self, key: object, make: Callable[[], None]) -> int:
        if key not in self._known:
            self._known[key] = self._buffers
            make()
            self._buffers += 1
        return self._known[key]

    def _raw(self, values: NDArray[np.generic], shape: tuple[int, ...]) -> None:
        if values.dtype == np.float32 and values.size >= FEWEST:
            # biases of attention [windows, heads, N, N] repeat in all heads at the same places
            heads = 4 == len(shape) and int(np.prod(shape)) == values.size
            views = [(1, 1, values.size), *([(shape[0], shape[1], -1)] if heads else [])]
            found = [self._palette(values.view(np.uint32).reshape(view)) for view in views]
            best = min((one for one in found if one is not None), key=_bytes, default=None)
            if best is not None and 2 * _bytes(best) < values.nbytes + values.size:
                self._record(PALETTE, *best.sizes)
                self._take(best.codes)
                self._take(best.table)
                return
        self._record(RAW, TYPES[values.dtype.name], values.size)
        self._take(values)

    @staticmethod
    def _palette(bits: NDArray[np.uint32]) -> _Palette | None:
        """Values [outer, groups, inner] as a table of each group and codes [outer, inner]."""
        outer, groups, inner = bits.shape
        columns = np.ascontiguousarray(bits.transpose(0, 2, 1)).reshape(-1, groups)
        whole = columns.view(np.dtype((np.void, 4 * groups)))[:, 0] if groups > 1 else columns[:, 0]
        entries, codes = np.unique(whole, return_inverse=True)
        if len(entries) > 1 << 16:
            return None
        table = entries.view(np.uint32).reshape(-1, groups).T
        small = np.uint8 if len(entries) <= 256 else np.uint16
        return _Palette(
            (outer, groups, inner, len(entries)),
            codes.astype(small),
            np.ascontiguousarray(table).view(np.float32),
        )

    def _panels(self, packed: NDArray[np.generic], form: Panels | WeightPart) -> None:
        assert isinstance(form, Panels)
        weight = np.empty((form.depth, form.outputs), np.float32)
        library.check(
            library.engine().cod_float_unpack(
                packed.ctypes.data,
                packed.nbytes // weight.itemsize,
                form.depth,
                form.outputs,
                weight.ctypes.data,
                weight.size,
            )
        )
        self._record(PANELS, form.depth, form.outputs)
        self._take(weight)

    def _weight(self, form: WeightPart) -> dict[str, int]:
        weight = form.weight
        codes, factor, multiplier = weight.unpack()
        self._record(
            CARRIER_WEIGHT, *weight.shape, weight.bits, weight.group, int(multiplier is not None)
        )
        self._take(pack(codes.flatten(), weight.bits).numpy())
        parts = ["packed", *(["multiplier"] if multiplier is not None else []), "factor"]
        if multiplier is not None:
            self._take(multiplier.numpy())
        self._take(factor.numpy())
        first = self._buffers
        self._buffers += len(parts)
        return {name: first + at for at, name in enumerate(parts)}

    def _record(self, *numbers: int) -> None:
        self.records += numbers
        self.count += 1

    def _take(self, values: NDArray[np.generic]) -> None:
        little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        self._values.setdefault(POOLS[values.dtype.name], []).append(little.tobytes())


def _memory(tensor: Tensor) -> NDArray[np.generic]:
    """The memory that a tensor spans, gaps included."""
    plain = tensor.detach()
    span = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride()))
    flat: NDArray[np.generic] = torch.as_strided(plain, (span,), (1,)).numpy()
    return flat
