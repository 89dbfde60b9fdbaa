"""Chains: runs of instructions that work row by row become one, over blocks of rows in cache.

A row is a token with its channels. What only the instructions of a chain read and write never
reaches memory: it becomes a slot, scratch memory of a thread for a block of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from codtdq.engine.program.encoding import KINDS
from codtdq.engine.program.layout import Buffer, Place, Space, order_of
from codtdq.engine.program.lowering import Instruction


@dataclass(eq=False)
class Local:
    """An instruction as the work of rows: operands whose first axis counts them, and others."""

    one: Instruction
    rows: int
    operands: list[Place | None]
    sliced: list[bool]
    weight: int = 0  # products of a row: what makes a chain worth it

    def parts(self, sliced: bool, written: bool | None = None) -> Iterable[Place]:
        """Operands of one sort."""
        for index, (place, own) in enumerate(zip(self.operands, self.sliced)):
            if place is None or own != sliced:
                continue
            if written is None or written == (index < self.one.writes):
                yield place


@dataclass(eq=False)
class _Chain:
    rows: int
    stages: list[Local] = field(default_factory=list)
    pitch: dict[Buffer, tuple[int, int]] = field(default_factory=dict)  # row distance, first row
    whole: set[Buffer] = field(default_factory=set)  # read other than row by row
    written: set[Buffer] = field(default_factory=set)

    def takes(self, local: Local) -> bool:
        """Whether an instruction can be next: its row r needs rows r of the others only."""
        if local.rows != self.rows:
            return False
        for place in local.parts(sliced=False):
            if place.buffer in self.written:
                return False
        touched = self.written | {place.buffer for place in local.parts(True, written=True)}
        for place in local.parts(sliced=True):
            known = self.pitch.get(place.buffer)
            if place.buffer not in touched:
                continue
            if place.buffer in self.whole or (known is not None and known != _pitch(place)):
                return False
        return True

    def add(self, local: Local) -> None:
        """Append an instruction."""
        self.stages.append(local)
        for place in local.parts(sliced=True):
            found = _pitch(place)
            if self.pitch.setdefault(place.buffer, found) != found:
                self.whole.add(place.buffer)  # read under two row distances
        self.whole.update(place.buffer for place in local.parts(sliced=False))
        self.written.update(place.buffer for place in local.parts(True, written=True))


def join_rows(instructions: list[Instruction]) -> tuple[list[Instruction], int]:
    """The same work with chains; returns also how many instructions went into them."""
    uses: dict[Buffer, int] = {}
    for one in instructions:
        for place in one.operands:
            if place is not None:
                uses[place.buffer] = uses.get(place.buffer, 0) + 1
    found: list[Instruction] = []
    chain: _Chain | None = None
    joined = 0

    def close() -> None:
        nonlocal chain, joined
        if chain is not None:
            made = _emit(chain, uses)
            joined += len(chain.stages) if len(made) < len(chain.stages) else 0
            found.extend(made)
        chain = None

    for one in instructions:
        local = None
        if chain is not None:
            local = _local(one, chain.rows)
            if local is not None and chain.takes(local):
                chain.add(local)
                continue
            close()
        local = _local(one, None)
        if local is None:
            found.append(one)
            continue
        chain = _Chain(local.rows)
        chain.add(local)
    close()
    return found, joined


def _pitch(place: Place) -> tuple[int, int]:
    """Distance of rows, and which row of that distance the first one is, in bytes."""
    size = place.type.size
    step = place.strides[0] * size
    return step, place.offset * size // step if step else 0


# ---- what works row by row

_Rule = Callable[[Instruction, int | None], Local | None]
_RULES: dict[str, _Rule] = {}


def _local(one: Instruction, rows: int | None) -> Local | None:
    make = _RULES.get(one.kind)
    return None if make is None else make(one, rows)


def _rule(*kinds: str) -> Callable[[_Rule], _Rule]:
    def keep(make: _Rule) -> _Rule:
        for kind in kinds:
            _RULES[kind] = make
        return make

    return keep


@_rule("unary", "binary", "copy")
def _elementwise(one: Instruction, rows: int | None) -> Local | None:
    """Row by row in the memory order of the result; alone it begins no chain."""
    y = one.operands[0]
    if rows is None or y is None or y.size % rows:
        return None
    order = order_of(y)
    found: list[Place | None] = []
    for place in one.operands:
        assert place is not None
        full = place if place.shape == y.shape else place.expand(y.shape)
        turned = full.permute(order).reshape((rows, y.size // rows))
        if turned is None:
            return None
        found.append(turned)
    first = found[0]
    assert first is not None
    if first.strides[1] != 1 and first.shape[1] > 1:
        return None
    return Local(one, rows, found, [True] * len(found))


@_rule("norm")
def _norm(one: Instruction, rows: int | None) -> Local | None:
    found = [
        place.reshape((place.size // place.shape[-1], place.shape[-1])) if place else None
        for place in one.operands[:2]
    ]
    if found[0] is None or found[1] is None:
        return None
    operands = [*found, *one.operands[2:]]
    return Local(one, found[0].shape[0], operands, [True, True] + [False] * (len(operands) - 2))


@_rule("carry_groups", "carry_tokens", "carry_fixed")
def _carry(one: Instruction, rows: int | None) -> Local | None:
    if one.ints[0] != 1 or (one.kind == "carry_fixed" and one.operands[3] is None):
        return None
    data = one.operands[0]
    assert data is not None
    sliced = [True] * 3 + [False] * (len(one.operands) - 3)
    return Local(one, data.shape[0], one.operands, sliced)


@_rule("carrier_product", "conv")
def _product(one: Instruction, rows: int | None) -> Local | None:
    if one.ints[5:11] != [1, 1, 1, 1, 0, 0]:
        return None
    y, x = one.operands[:2]
    assert y is not None
    assert x is not None
    if one.kind == "conv":
        sliced = [True, True, False, False, True]
    elif one.ints[13] == 1:
        sliced = [True, True, True] + [False] * 5 + [True]
    else:
        return None
    return Local(one, y.shape[0], one.operands, sliced, y.shape[1] * x.shape[1])


@_rule("carrier_depthwise")
def _depthwise(one: Instruction, rows: int | None) -> Local | None:
    """Writes rows, reads whole maps: nothing in the chain writes those."""
    y = one.operands[0]
    assert y is not None
    return Local(one, y.shape[0], one.operands, [True] + [False] * (len(one.operands) - 1))


# ---- encoding


def _emit(chain: _Chain, uses: dict[Buffer, int]) -> list[Instruction]:
    """A chain as one instruction, or its instructions where that saves no memory."""
    stages = chain.stages
    own: dict[Buffer, int] = {}
    spread: set[Buffer] = set()  # over the columns: a slot's row holds each of its values once
    for local in stages:
        for place in local.operands:
            if place is None:
                continue
            own[place.buffer] = own.get(place.buffer, 0) + 1
            if len(place.shape) == 2 and place.shape[1] > 1 and place.strides[1] != 1:
                spread.add(place.buffer)
    slots: dict[Buffer, int] = {}
    for buffer in chain.written:
        step, first = chain.pitch[buffer]
        inside = buffer.space is Space.ARENA and own[buffer] == uses[buffer]
        if (
            inside
            and buffer not in chain.whole
            and buffer not in spread
            and first == 0
            and step * chain.rows == buffer.bytes
        ):
            slots[buffer] = step
    if not slots or not any(local.weight for local in stages):
        return [local.one for local in stages]
    numbers = {buffer: number for number, buffer in enumerate(slots)}
    operands: list[Place | None] = []
    ints = [chain.rows, len(slots), *slots.values(), len(stages)]
    floats: list[float] = []
    for local in stages:
        one = local.one
        ints += [KINDS[one.kind], len(local.operands), len(one.ints), len(one.floats)]
        for place, sliced in zip(local.operands, local.sliced):
            if place is None:
                ints += [-1, 0, 0, 0]
            elif place.buffer in numbers:
                columns = place.shape[1] if len(place.shape) == 2 else 0
                start = place.offset
                ints += [1, numbers[place.buffer], int(place.type), start * 2**32 + columns]
            else:
                ints += [0, len(operands), int(sliced), 0]
                operands.append(place)
        ints += one.ints
        floats += one.floats
    return [Instruction("chain", operands, ints, floats, writes=0)]
