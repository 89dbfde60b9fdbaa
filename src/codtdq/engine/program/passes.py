"""Passes over instructions: results in place, activations and sums along with products."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codtdq.engine.program.chains import join_rows
from codtdq.engine.program.epilogues import join, reuse
from codtdq.engine.program.layout import Buffer, Place, Space
from codtdq.engine.program.lowering import Instruction, Lowering

PASSES = ("epilogues", "chains", "in_place")


def improve(
    low: Lowering, outputs: list[tuple[int, Place]], passes: Collection[str] = PASSES
) -> dict[str, int]:
    """Apply passes and place the results; returns how many instructions each pass has changed."""
    _write_outputs(low, outputs)
    found = {}
    if "epilogues" in passes:
        low.instructions, found["epilogues"] = join(low.instructions)
    if "chains" in passes:
        low.instructions, found["chains"] = join_rows(low.instructions)
    if "in_place" in passes:
        found["in_place"] = reuse(low.instructions)
    return found


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
