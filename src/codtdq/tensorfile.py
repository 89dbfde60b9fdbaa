"""Read safetensors files: each tensor once, into memory of its own, which is the model's then.

Nothing stays mapped: what happens to the file later does not matter. What a file says of itself is
believed after it was compared with the bytes that are there.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

LARGEST_HEADER = 100_000_000  # bytes of JSON, as the format has it
_AT_ONCE = 4 << 20  # bytes that are handed over together
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
}

Hasher = Callable[[Any], None]  # takes the bytes of a file, one piece after the other


class _Entry(NamedTuple):
    begin: int
    end: int
    name: str
    shape: list[int]
    dtype: torch.dtype


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; raises OSError or ValueError."""
    with Path(path).open("rb") as stream:
        return read_open(stream, os.fstat(stream.fileno()).st_size, lambda piece: None)


def read_open(
    stream: BinaryIO, size: int, hasher: Hasher
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of an open file of a size; ValueError where it is no safetensors.

    hasher: gets all bytes in their order, from the memory that the tensors have, while the next
        ones are read; after an error, only some.
    """
    start = _exactly(stream, 8, size)
    length = int.from_bytes(start, "little")
    if length > min(LARGEST_HEADER, size - 8):
        raise ValueError(f"its header would have {length} bytes")
    header = _exactly(stream, length, size)
    entries, metadata = _parse(header, size - 8 - length)
    tensors: dict[str, Tensor] = {}
    with ThreadPoolExecutor(1) as thread:  # hashing takes as long as reading
        waiting, count = [memoryview(start), memoryview(header)], 0
        for entry in entries:
            tensor = tensors[entry.name] = _empty(entry)
            memory = _memory(tensor)
            if stream.readinto(memory) != len(memory):  # type: ignore[attr-defined]
                raise ValueError("it became shorter while it was read")
            waiting.append(memory)
            count += len(memory)
            if count >= _AT_ONCE:
                thread.submit(_hand_over, hasher, waiting)
                waiting, count = [], 0
        thread.submit(_hand_over, hasher, waiting)
    if sys.byteorder == "big":
        for tensor in tensors.values():
            tensor.untyped_storage().byteswap(tensor.dtype)
    return tensors, metadata


def _hand_over(hasher: Hasher, pieces: list[memoryview]) -> None:
    for piece in pieces:
        hasher(piece)


def _exactly(stream: BinaryIO, count: int, size: int) -> bytes:
    found = stream.read(count)
    if len(found) != count:
        raise ValueError(f"it has {size} bytes only")
    return found


def _parse(header: bytes, size: int) -> tuple[list[_Entry], dict[str, str]]:
    """The tensors in the order of their bytes, which are all bytes behind the header."""
    try:
        table = json.loads(header, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("its header is too deep") from error
    if not isinstance(table, dict):
        raise ValueError("its header is no object")
    metadata = table.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are no texts")
    entries = sorted((_entry(name, value) for name, value in table.items()), key=lambda e: e[:2])
    at = 0
    for entry in entries:
        if entry.begin != at:
            raise ValueError(f"{entry.name[:60]!r} does not begin where the tensor before it ends")
        at = entry.end
    if at != size:
        raise ValueError(f"its tensors have {at} bytes, it has {size}")
    return entries, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _entry(name: str, value: Any) -> _Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name[:60]!r} is not described by dtype, shape and data_offsets")
    shape, offsets, kind = value["shape"], value["data_offsets"], value["dtype"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{name[:60]!r} has a shape or offsets that are no whole numbers")
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise ValueError(f"{name[:60]!r} has an unknown dtype")
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name[:60]!r} has {end - begin} bytes, not those of its shape")
    return _Entry(begin, end, name, shape, dtype)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _empty(entry: _Entry) -> Tensor:
    try:
        return torch.empty(entry.shape, dtype=entry.dtype)
    except (RuntimeError, OverflowError, TypeError) as error:  # of no elements, and endless sides
        raise ValueError(f"{entry.name[:60]!r} has a shape that no tensor has") from error


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a dense tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data
