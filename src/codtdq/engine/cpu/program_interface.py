"""The C interface of programs as ctypes sees it."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any

AXES = 8


class Operand(Structure):
    """cod_operand."""

    _fields_ = [
        *[(name, c_int32) for name in ("space", "buffer", "type", "ndim")],
        ("offset", c_int64),
        ("shape", c_int64 * AXES),
        ("stride", c_int64 * AXES),
    ]


class Record(Structure):
    """cod_instruction."""

    _fields_ = [
        *[(name, c_int32) for name in ("kind", "operand_count", "int_count", "float_count")],
        *[(name, c_int64) for name in ("first_operand", "first_int", "first_float")],
    ]


class Memory(Structure):
    """cod_buffer and cod_result."""

    _fields_ = [("data", c_void_p), ("bytes", c_int64)]


class Code(Structure):
    """cod_program_code."""

    _fields_ = [
        ("instructions", POINTER(Record)),
        ("operands", POINTER(Operand)),
        ("ints", POINTER(c_int64)),
        ("floats", POINTER(c_double)),
        *[
            (name, c_int64)
            for name in ("instruction_count", "operand_count", "int_count", "float_count")
        ],
        *[(name, POINTER(Memory)) for name in ("constants", "inputs", "outputs")],
        *[(name, c_int64) for name in ("constant_count", "input_count", "output_count")],
        ("arena_bytes", c_int64),
    ]


def declare(library: Any) -> None:
    """Tell ctypes the functions of programs."""
    library.cod_program_build.argtypes = [POINTER(Code), POINTER(c_void_p), POINTER(c_int64)]
    library.cod_program_free.restype, library.cod_program_free.argtypes = None, [c_void_p]
    run = [c_void_p, POINTER(Memory), c_int64, POINTER(Memory), c_int64, c_int32]
    library.cod_program_run.argtypes = run
    library.cod_program_profile.argtypes = [*run, POINTER(c_int64), c_int64]
    library.cod_program_kind.restype, library.cod_program_kind.argtypes = c_char_p, [c_int32]
    library.cod_float_packed.restype = c_int64
    library.cod_float_packed.argtypes = [c_int64, c_int64]
    library.cod_float_pack.argtypes = [c_void_p, *[c_int64] * 5, c_void_p, c_int64]
    library.cod_float_unpack.argtypes = [c_void_p, *[c_int64] * 3, c_void_p, c_int64]


STRUCTURES = {
    "OPERAND_BYTES": Operand,
    "INSTRUCTION_BYTES": Record,
    "BUFFER_BYTES": Memory,
    "PROGRAM_CODE_BYTES": Code,
}
