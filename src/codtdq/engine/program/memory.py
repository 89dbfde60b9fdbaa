"""The arena: buffers that are never alive at the same time share memory."""

from __future__ import annotations

from bisect import insort

from codtdq.engine.program.layout import Buffer, Space
from codtdq.engine.program.lowering import Instruction

ALIGNMENT = 128  # bytes: cache lines of two neighbours


def lifetimes(instructions: list[Instruction]) -> dict[Buffer, tuple[int, int]]:
    """The first and the last instruction that touches each buffer of the arena."""
    found: dict[Buffer, tuple[int, int]] = {}
    for index, one in enumerate(instructions):
        for place in one.operands:
            if place is not None and place.buffer.space is Space.ARENA:
                first = found.get(place.buffer, (index, index))[0]
                found[place.buffer] = (first, index)
    return found


def plan(instructions: list[Instruction]) -> int:
    """Give every buffer its offset, the largest ones first; returns the size of the arena."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    total = 0
    lives = lifetimes(instructions)
    for buffer, (first, last) in sorted(lives.items(), key=lambda item: (-item[0].bytes, item[1])):
        size = -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        at = 0
        for offset, end, begin, stop in placed:
            if stop < first or begin > last:
                continue
            if offset - at >= size:
                break
            at = max(at, end)
        buffer.offset = at
        insort(placed, (at, at + size, first, last))
        total = max(total, at + size)
    return total
