"""Instructions as the engine reads them: arrays of fixed-size records."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any

from codtdq.engine.program.layout import Place, Space
from codtdq.engine.program.lowering import Instruction

AXES = 8
KINDS = {
    "copy": 1,
    "unary": 2,
    "binary": 3,
    "norm": 4,
    "group_norm": 5,
    "softmax": 6,
    "matmul": 7,
    "conv": 8,
    "depthwise": 9,
    "reduce": 10,
    "resize": 11,
    "pool": 12,
    "sample": 13,
    "gather": 14,
    "deform": 15,
    "attention": 16,
    "carry_groups": 32,
    "carry_fixed": 33,
    "carrier_product": 34,
    "carrier_depthwise": 35,
    "chain": 64,
    "carry_tokens": 36,
    "carry_pixels": 37,
}


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
    """cod_buffer."""

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
    run = [c_void_p, POINTER(c_void_p), POINTER(c_void_p), c_int32]
    library.cod_program_run.argtypes = run
    library.cod_program_profile.argtypes = [*run, POINTER(c_int64)]
    library.cod_program_kind.restype, library.cod_program_kind.argtypes = c_char_p, [c_int32]
    library.cod_float_packed.restype = c_int64
    library.cod_float_packed.argtypes = [c_int64, c_int64]
    library.cod_float_pack.argtypes = [c_void_p, *[c_int64] * 4, c_void_p]


class Arrays:
    """The code of one program, with the arrays that it points to."""

    def __init__(
        self,
        instructions: list[Instruction],
        constants: list[tuple[int, int]],
        inputs: list[int],
        outputs: list[int],
        arena_bytes: int,
    ) -> None:
        places = [place for one in instructions for place in one.operands]
        ints = [number for one in instructions for number in one.ints]
        floats = [number for one in instructions for number in one.floats]
        self.operands = (Operand * max(len(places), 1))()
        for record, place in zip(self.operands, places):
            _fill(record, place)
        self.ints = (c_int64 * max(len(ints), 1))(*ints)
        self.floats = (c_double * max(len(floats), 1))(*floats)
        self.records = (Record * max(len(instructions), 1))()
        at = [0, 0, 0]
        for record, one in zip(self.records, instructions):
            counts = (len(one.operands), len(one.ints), len(one.floats))
            record.kind = KINDS[one.kind]
            record.operand_count, record.int_count, record.float_count = counts
            record.first_operand, record.first_int, record.first_float = at
            at = [first + count for first, count in zip(at, counts)]
        self.constants = (Memory * max(len(constants), 1))(*(Memory(*one) for one in constants))
        self.inputs = (Memory * max(len(inputs), 1))(*(Memory(None, n) for n in inputs))
        self.outputs = (Memory * max(len(outputs), 1))(*(Memory(None, n) for n in outputs))
        self.code = Code(
            self.records,
            self.operands,
            self.ints,
            self.floats,
            len(instructions),
            len(places),
            len(ints),
            len(floats),
            self.constants,
            self.inputs,
            self.outputs,
            len(constants),
            len(inputs),
            len(outputs),
            arena_bytes,
        )

    def build(self, engine: Any) -> tuple[int, int | None, int]:
        """(result code, program, number of the instruction that does not fit)."""
        program, wrong = c_void_p(), c_int64(-1)
        code = engine.cod_program_build(byref(self.code), byref(program), byref(wrong))
        return code, program.value, wrong.value


def _fill(record: Operand, place: Place | None) -> None:
    if place is None:
        return
    buffer = place.buffer
    record.space, record.buffer = int(buffer.space), buffer.number
    record.type, record.ndim = int(place.type), len(place.shape)
    base = buffer.offset if buffer.space is Space.ARENA else 0
    record.offset = base + place.offset * place.type.size
    for axis, (n, stride) in enumerate(zip(place.shape, place.strides)):
        record.shape[axis], record.stride[axis] = n, stride


assert ctypes.sizeof(Operand) == 24 + 16 * AXES
