"""Instructions as the engine reads them: arrays of fixed-size records."""

from __future__ import annotations

from ctypes import byref, c_double, c_int64, c_void_p
from typing import Any

from codtdq.engine.cpu.program_interface import Code, Memory, Operand, Record
from codtdq.engine.program.layout import Place, Space
from codtdq.engine.program.lowering import Instruction

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
