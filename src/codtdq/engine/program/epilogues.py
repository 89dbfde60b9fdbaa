"""Work that joins what is before it: activations and sums in a product, results in place."""

from __future__ import annotations

from dataclasses import replace

from codtdq.engine.program.layout import Buffer, Place, Space
from codtdq.engine.program.lowering import Instruction
from codtdq.engine.program.memory import lifetimes

RELU, GELU, ADD, MULTIPLY = 1, 2, 0, 2
NATIVE = {GELU: 1, RELU: 2}  # activations of quantized products: COD_ACT_*
ACTIVATED = {"conv", "depthwise", "carrier_product", "carrier_depthwise"}  # last number: which
GAIN = {"carrier_product": 7}  # operands: what the columns of a product are multiplied with,
ADDED = {"conv": 4, "carrier_product": 8}  # and the rows that are added last


def join(instructions: list[Instruction]) -> tuple[list[Instruction], int]:
    """Activations, gains and residuals go into the product before them; returns how many did."""
    writers, readers = _touching(instructions)
    gone: set[int] = set()
    for index, one in enumerate(instructions):
        for source in one.reads():
            made = writers.get(source.buffer, [])
            if len(made) != 1 or made[0] in gone or readers[source.buffer] != [index]:
                continue
            maker = instructions[made[0]]
            target = _moved(maker, source, one)
            if target is None:
                continue
            if one.kind == "unary" and _activate(maker, one):
                pass
            elif one.kind != "binary" or not (
                _scale(maker, one, source) or _add(maker, one, source, made[0], writers)
            ):
                continue
            if one.operands[0] is not None and one.operands[0].buffer is not source.buffer:
                maker.operands[0] = target
                writers[target.buffer] = [
                    made[0] if at == index else at for at in writers[target.buffer]
                ]
            gone.add(index)
            break
    return [one for index, one in enumerate(instructions) if index not in gone], len(gone)


def _touching(
    instructions: list[Instruction],
) -> tuple[dict[Buffer, list[int]], dict[Buffer, list[int]]]:
    """Who writes and who reads each buffer."""
    writers: dict[Buffer, list[int]] = {}
    readers: dict[Buffer, list[int]] = {}
    for index, one in enumerate(instructions):
        for at, place in enumerate(one.operands):
            if place is not None:
                side = writers if at < one.writes else readers
                side.setdefault(place.buffer, []).append(index)
    return writers, readers


def _moved(maker: Instruction, source: Place, one: Instruction) -> Place | None:
    """Where a product has to write, so that its results lie where those of `one` do."""
    y, own = one.operands[0], maker.operands[0]
    if maker.kind not in ACTIVATED or y is None or own is None:
        return None
    if source.shape != y.shape or own.size != source.size or own.offset != source.offset:
        return None
    same = all(n == 1 or a == b for n, a, b in zip(source.shape, source.strides, y.strides))
    return replace(own, buffer=y.buffer, offset=y.offset) if same else None


def _activate(maker: Instruction, one: Instruction) -> bool:
    op, native = one.ints[0], maker.kind.startswith("carrier")
    if maker.ints[-1] != 0 or op not in NATIVE or _joined(maker):
        return False
    maker.ints[-1] = NATIVE[op] if native else op
    return True


def _joined(maker: Instruction) -> bool:
    """Whether something follows the activation of a product already."""
    places = [table[maker.kind] for table in (GAIN, ADDED) if maker.kind in table]
    return any(maker.operands[at] is not None for at in places)


def _scale(maker: Instruction, one: Instruction, source: Place) -> bool:
    """Let the product multiply its columns with constants: layer scale."""
    if maker.kind not in GAIN or one.ints[0] != MULTIPLY or _joined(maker):
        return False
    others, own = [place for place in one.reads() if place is not source], maker.operands[0]
    if len(others) != 1 or own is None or source.shape[-1] != own.shape[1]:
        return False
    gain = others[0]
    repeated = all(n == 1 or s == 0 for n, s in zip(gain.shape[:-1], gain.strides[:-1]))
    alike = gain.shape[-1] == own.shape[1] and gain.strides[-1] == source.strides[-1] == 1
    if not (repeated and alike and gain.buffer.space is Space.CONSTANT):
        return False
    maker.operands[GAIN[maker.kind]] = replace(gain, shape=own.shape[1:], strides=(1,))
    return True


def _add(
    maker: Instruction, one: Instruction, source: Place, made: int, writers: dict[Buffer, list[int]]
) -> bool:
    """Let the product of x + product add x."""
    if maker.kind not in ADDED or one.ints[0] != ADD:
        return False
    at = ADDED[maker.kind]
    if maker.operands[at] is not None:
        return False
    others = [place for place in one.reads() if place is not source]
    own = maker.operands[0]
    if len(others) != 1 or own is None or others[0].shape != source.shape:
        return False
    other = others[0]
    same = all(n == 1 or a == b for n, a, b in zip(source.shape, source.strides, other.strides))
    # what is added has to be there when the product runs
    if not same or other.buffer is own.buffer or max(writers.get(other.buffer, [-1])) >= made:
        return False
    maker.operands[at] = replace(own, buffer=other.buffer, offset=other.offset)
    return True


def reuse(instructions: list[Instruction]) -> int:
    """Let elementwise results lie where an input lay that nobody needs any more."""
    lives, count = lifetimes(instructions), 0
    renamed: dict[Buffer, Buffer] = {}
    for index, one in enumerate(instructions):
        one.operands = [
            place if place is None else replace(place, buffer=_final(renamed, place.buffer))
            for place in one.operands
        ]
        y = one.operands[0]
        if one.kind not in ("unary", "binary") or y is None or y.buffer not in lives:
            continue
        for source in one.reads():
            own = source.buffer
            if own is y.buffer or own not in lives or own.bytes != y.buffer.bytes:
                continue
            if own.space is not Space.ARENA or y.buffer.space is not Space.ARENA:
                continue
            if (
                lives[own][1] != index
                or lives[y.buffer][0] != index
                or source != replace(y, buffer=own)
            ):
                continue
            renamed[y.buffer] = own
            lives[own] = (lives[own][0], lives[y.buffer][1])
            one.operands[0] = replace(y, buffer=own)
            count += 1
            break
    return count


def _final(renamed: dict[Buffer, Buffer], buffer: Buffer) -> Buffer:
    while buffer in renamed:
        buffer = renamed[buffer]
    return buffer
