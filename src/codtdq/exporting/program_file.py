"""Write program files: captured runs of one model, for `codtdq.runtime` and the C interface."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from codtdq.engine.cpu.program_interface import Operand
from codtdq.engine.program.layout import Space
from codtdq.engine.program.program import Program
from codtdq.exporting.constants import ConstantTable
from codtdq.exporting.stream import encoded
from codtdq.io import atomic_path
from codtdq.printing import printable

FORMAT, VERSION = "codtdq-program", "1"
UNSEALED = "0" * 64  # in the place of the hash while it is computed
_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U16": 2, "I8": 1, "U8": 1}
_DTYPES = {"f32": "F32", "i8": "I8", "u8": "U8", "u16": "U16", "i32": "I32", "i64": "I64"}


def write_program_file(
    path: str | Path,
    programs: Sequence[Program],
    metadata: Mapping[str, str],
    mean: Sequence[float],
    std: Sequence[float],
) -> Path:
    """Write programs of one model, each of one input and one result; returns the path.

    metadata: texts that the file says of itself; `postprocess` is one that `codtdq.predict` knows,
        or "none". mean, std: of the channels, with which images are normalised.
    """
    table = ConstantTable()
    tensors: dict[str, tuple[str, bytes]] = {}
    for number, program in enumerate(programs):
        code, floats = _code(program, table.numbers(program))
        tensors[f"code.{number}"] = ("U8", code)
        tensors[f"floats.{number}"] = ("F64", floats)
    tensors["constants"] = ("U8", encoded([table.count, *table.records]))
    tensors["normalization"] = ("F32", np.array([*mean, *std], "<f4").tobytes())
    tensors |= {name: (_DTYPES[name], data) for name, data in table.tensors().items()}
    texts = {"format": FORMAT, "version": VERSION, "sha256": UNSEALED}
    texts |= {key: printable(value) for key, value in metadata.items()}
    return _write(Path(path), tensors, texts)


def _write(path: Path, tensors: dict[str, tuple[str, bytes]], texts: dict[str, str]) -> Path:
    """A safetensors file, wide types first, with its own hash in the header."""
    names = sorted(tensors, key=lambda name: (-_SIZES[tensors[name][0]], name))
    header: dict[str, object] = {"__metadata__": texts}
    at = 0
    for name in names:
        dtype, data = tensors[name]
        header[name] = {
            "dtype": dtype,
            "shape": [len(data) // _SIZES[dtype]],
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(8, "little") + text, *(tensors[name][1] for name in names)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    parts[0] = parts[0].replace(
        f'"sha256":"{UNSEALED}"'.encode(), f'"sha256":"{digest.hexdigest()}"'.encode(), 1
    )
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for part in parts:
            file.write(part)
    return path


def _code(program: Program, numbers: list[int]) -> tuple[bytes, bytes]:
    """Stream and floats of a program whose constants have these numbers in the file."""
    code = program.arrays.code
    (given,), (made,) = program.input_shapes, program.output_shapes
    found = [len(given), *given, len(made), *made, program.arena_bytes]
    found += [code.instruction_count, code.operand_count, code.int_count, code.float_count]
    for one in program.arrays.records[: code.instruction_count]:
        found += [one.kind, one.operand_count, one.int_count, one.float_count]
    packed = set(program.forms)
    for operand in program.arrays.operands[: code.operand_count]:
        found += _operand(operand, numbers, packed)
    found += program.arrays.ints[: code.int_count]
    floats = np.array(program.arrays.floats[: code.float_count], "<f8")
    return encoded(found), floats.tobytes()


def _operand(x: Operand, numbers: list[int], packed: set[int]) -> list[int]:
    if x.space == Space.NONE:
        return [int(Space.NONE)]
    constant = x.space == Space.CONSTANT
    buffer = numbers[x.buffer] if constant else x.buffer
    found = [x.space, buffer, x.type, x.ndim, x.offset]
    if constant and x.buffer in packed:
        return [*found, 0, 1]  # as many values as the reader's instruction set packs
    for axis in range(x.ndim):
        found += [x.shape[axis], x.stride[axis]]
    return found
