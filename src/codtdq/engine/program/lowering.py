"""From a recording to instructions: each operation has one rule, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from codtdq.engine.program.constants import Constants
from codtdq.engine.program.layout import Buffer, Place, Space, Type, dense, order_of, ordered
from codtdq.engine.program.traced import Node, NotCapturable, Recording, Value


@dataclass(eq=False)
class Instruction:
    """One instruction; its first `writes` operands are written."""

    kind: str
    operands: list[Place | None]
    ints: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    writes: int = 1

    def reads(self) -> list[Place]:
        """The operands that it reads."""
        return [one for one in self.operands[self.writes :] if one is not None]


Rule = Callable[["Lowering", Node], None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of some operations."""

    def keep(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return keep


class Lowering:
    """Places of values and the instructions that fill them."""

    def __init__(self, recording: Recording, constants: Constants) -> None:
        self.constants = constants
        self.instructions: list[Instruction] = []
        self.places: dict[Value, Place] = {}
        self.wishes: dict[Value, Place] = {}  # where a value had better be written to
        self.kept: dict[Any, Any] = {}  # carriers and copies that several nodes share
        self.recording = recording
        for number, value in enumerate(recording.inputs):
            buffer = Buffer(4 * Place(Buffer(0), value.shape, ()).size, Space.INPUT, number)
            self.places[value] = Place(buffer, value.shape, dense(value.shape))
        nodes = _needed(recording)
        self.results = {leaf for leaf in recording.outputs if isinstance(leaf, Value)}
        missing = sorted({node.name for node in nodes if node.name not in RULES})
        if missing:
            raise NotCapturable(f"no instruction for {', '.join(missing)}")
        self.nodes = nodes

    def run(self) -> None:
        """Lower every node."""
        from codtdq.engine.program.concatenation import wish

        wish(self)
        for node in self.nodes:
            RULES[node.name](self, node)

    # ---- reading

    def place(self, x: Any) -> Place:
        """Where a value, a constant or a number lies."""
        if isinstance(x, Value):
            return self.places[x]
        return self.constants.place(x)

    def rows_last(self, x: Any) -> Place:
        """Return x with its last axis side by side."""
        place = self.place(x)
        return place if _side_by_side(place, -1) else self.copied(place)

    def maps(self, x: Any, *, uniform: bool = False) -> Place:
        """Maps x [B, C, *positions] as [B, H, W, C], channels side by side.

        uniform: rows at one distance, image after image.
        """
        place = x if isinstance(x, Place) else self.place(x)
        if len(place.shape) == 3:
            place = place.unsqueeze(2)
        place = place.permute((0, 2, 3, 1))
        whole = place.reshape((place.size // place.shape[3], place.shape[3]))
        if _side_by_side(place, -1) and (whole is not None or not uniform):
            return place
        return self.copied(place)

    def copied(self, place: Place) -> Place:
        """The same values without gaps."""
        found: Place | None = self.kept.get(place)
        if found is None:
            found = self.new(place.shape)
            self.emit("copy", [found, place])
            self.kept[place] = found
        return found

    # ---- writing

    def new(self, shape: Sequence[int], order: Sequence[int] | None = None) -> Place:
        """Fresh memory without gaps."""
        shape = tuple(shape)
        place = Place(Buffer(0), shape, dense(shape) if order is None else ordered(shape, order))
        place.buffer.bytes = 4 * place.size
        return place

    def bytes(self, rows: int, depth: int) -> Place:
        """Fresh memory for carriers."""
        buffer = Buffer(rows * depth)
        return Place(buffer, (rows, depth), (depth, 1), type=Type.I8)

    def output(
        self, value: Value, order: Sequence[int] | None = None, *, uniform: bool = False
    ) -> Place:
        """Memory for a result; order of its axes in memory, the last one innermost.

        uniform: rows along that axis lie at one distance.
        """
        place = self.wishes.get(value)
        wanted = list(range(len(value.shape))) if order is None else list(order)
        if place is None or not _suits(place, wanted, uniform):
            place = self.new(value.shape, wanted)
        self.places[value] = place
        return place

    def output_like(self, value: Value, *others: Place) -> Place:
        """Memory for an elementwise result, in the memory order of its largest input."""
        model = max(others, key=lambda one: (sum(s != 0 for s in one.strides), one.size))
        free = model.size > 1 and value not in self.results
        order = order_of(model.expand(value.shape)) if free else None
        return self.output(value, order)

    def output_maps(self, value: Value) -> Place:
        """Memory for maps [B, C, *positions], returned as [B, H, W, C]."""
        order = (0, 2, 1) if len(value.shape) == 3 else (0, 2, 3, 1)
        place = self.output(value, order, uniform=True)
        if len(place.shape) == 3:
            place = place.unsqueeze(2)
        return place.permute((0, 2, 3, 1))

    def emit(
        self,
        kind: str,
        operands: list[Place | None],
        ints: Sequence[int] = (),
        floats: Sequence[float] = (),
        writes: int = 1,
    ) -> Instruction:
        """Append an instruction."""
        one = Instruction(kind, operands, [int(n) for n in ints], list(map(float, floats)), writes)
        self.instructions.append(one)
        return one

    def view(self, node: Node, place: Place) -> None:
        """The one result of a node is a view."""
        self.places[node.outputs[0]] = place


def rows_of(place: Place) -> Place:
    """[..., C] as [rows, C] at one distance; an error where there is none."""
    found = place.reshape((place.size // place.shape[-1], place.shape[-1]))
    assert found is not None
    return found


def constant(x: Any) -> Tensor:
    """An argument that has to be a constant."""
    if isinstance(x, Tensor):
        return x
    raise NotCapturable("a weight or table depends on the input")


def _side_by_side(place: Place, axis: int) -> bool:
    return place.shape[axis] == 1 or place.strides[axis] == 1


def _suits(place: Place, order: Sequence[int], uniform: bool) -> bool:
    """Whether memory has the innermost axis of an order innermost, too."""
    turned = place.permute(order)
    if not _side_by_side(turned, -1):
        return False
    return (
        not uniform
        or turned.reshape((turned.size // turned.shape[-1], turned.shape[-1])) is not None
    )


def _needed(recording: Recording) -> list[Node]:
    """The nodes that a result depends on."""
    wanted = {id(leaf) for leaf in recording.outputs if isinstance(leaf, Value)}
    found: list[Node] = []
    for node in reversed(recording.nodes):
        if any(id(value) in wanted for value in node.outputs):
            found.append(node)
            wanted.update(id(value) for value in node.inputs())
    return found[::-1]


def number(x: Any, default: float) -> float:
    """A number that may be left out."""
    return default if x is None else float(x)


def argument(node: Node, at: int, name: str, default: Any = None) -> Any:
    """An argument by place or name."""
    return node.args[at] if at < len(node.args) else node.settings.get(name, default)


def floats(x: Tensor) -> Tensor:
    """A constant as float32."""
    return x.detach().to(torch.float32)
