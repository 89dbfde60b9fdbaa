"""Rules of views: they cost nothing, but for a copy where memory does not allow one."""

from __future__ import annotations

from codtdq.engine.program.concatenation import parts_of
from codtdq.engine.program.lowering import Lowering, argument, rule
from codtdq.engine.program.traced import Node, NotCapturable


@rule(
    "aten.alias.default",
    "aten.detach.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh.default",
    "aten.dropout.default",
)
def same(low: Lowering, node: Node) -> None:
    """The same values."""
    low.view(node, low.place(node.args[0]))


@rule("aten._to_copy.default")
def converted(low: Lowering, node: Node) -> None:
    """A copy in the same type: anything else is refused when it is recorded."""
    low.view(node, low.place(node.args[0]))


@rule(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_copy.default",
)
def view(low: Lowering, node: Node) -> None:
    """Another shape."""
    place, shape = low.place(node.args[0]), node.outputs[0].shape
    found = place.reshape(shape)
    if found is None:
        found = low.copied(place).reshape(shape)
        assert found is not None
    low.view(node, found)


@rule("aten.permute.default")
def permute(low: Lowering, node: Node) -> None:
    """Axes in another order."""
    low.view(node, low.place(node.args[0]).permute(node.args[1]))


@rule("aten.transpose.int")
def transpose(low: Lowering, node: Node) -> None:
    """Two axes exchanged."""
    place = low.place(node.args[0])
    axes = list(range(len(place.shape)))
    a, b = node.args[1] % len(axes), node.args[2] % len(axes)
    axes[a], axes[b] = b, a
    low.view(node, place.permute(axes))


@rule("aten.t.default")
def t(low: Lowering, node: Node) -> None:
    """The axes of a matrix exchanged."""
    place = low.place(node.args[0])
    low.view(node, place.permute(range(len(place.shape))[::-1]))


@rule("aten.slice.Tensor")
def slice_(low: Lowering, node: Node) -> None:
    """A part of an axis."""
    place = low.place(node.args[0])
    axis = int(argument(node, 1, "dim", 0)) % len(place.shape)
    start = argument(node, 2, "start") or 0
    size = place.shape[axis]
    start = min(max(start + size if start < 0 else start, 0), size)
    step = int(argument(node, 4, "step", 1))
    low.view(node, place.slice(axis, start, node.outputs[0].shape[axis], step))


@rule("aten.select.int")
def select(low: Lowering, node: Node) -> None:
    """One index of an axis."""
    place = low.place(node.args[0])
    axis = node.args[1] % len(place.shape)
    low.view(node, place.select(axis, node.args[2] % place.shape[axis]))


@rule("aten.unsqueeze.default")
def unsqueeze(low: Lowering, node: Node) -> None:
    """A new axis."""
    axis = node.args[1] % len(node.outputs[0].shape)
    low.view(node, low.place(node.args[0]).unsqueeze(axis))


@rule("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(low: Lowering, node: Node) -> None:
    """Axes of length 1 vanish."""
    found = low.place(node.args[0]).reshape(node.outputs[0].shape)
    assert found is not None
    low.view(node, found)


@rule("aten.expand.default")
def expand(low: Lowering, node: Node) -> None:
    """Repeated values."""
    low.view(node, low.place(node.args[0]).expand(node.outputs[0].shape))


@rule("aten.unbind.int")
def unbind(low: Lowering, node: Node) -> None:
    """The indices of an axis, one by one."""
    place = low.place(node.args[0])
    axis = int(argument(node, 1, "dim", 0)) % len(place.shape)
    for index, value in enumerate(node.outputs):
        low.places[value] = place.select(axis, index)


@rule("aten.split.Tensor", "aten.split_with_sizes.default")
def split(low: Lowering, node: Node) -> None:
    """Parts of an axis."""
    place = low.place(node.args[0])
    axis = int(argument(node, 2, "dim", 0)) % len(place.shape)
    start = 0
    for value in node.outputs:
        low.places[value] = place.slice(axis, start, value.shape[axis])
        start += value.shape[axis]


@rule("aten.cat.default")
def cat(low: Lowering, node: Node) -> None:
    """Parts side by side: copies of those that were not written there at once."""
    whole = low.places[node.outputs[0]]
    parts, axis = parts_of(node)
    start = 0
    for part in parts:
        place = low.place(part)
        if len(place.shape) != len(whole.shape):
            raise NotCapturable("a concatenation with an empty tensor")
        target = whole.slice(axis, start, place.shape[axis])
        if place != target:
            low.emit("copy", [target, place])
        start += place.shape[axis]


@rule("aten.stack.default")
def stack(low: Lowering, node: Node) -> None:
    """Parts along a new axis."""
    parts, axis = parts_of(node)
    whole = low.output(node.outputs[0])
    for index, part in enumerate(parts):
        low.emit("copy", [whole.select(axis, index), low.place(part)])


@rule("aten.repeat.default")
def repeat(low: Lowering, node: Node) -> None:
    """Values over and over, in memory of their own."""
    place, times = low.place(node.args[0]), node.args[1]
    value = node.outputs[0]
    whole = low.output(value)
    lead = len(times) - len(place.shape)
    source = place
    for _ in range(lead):
        source = source.unsqueeze(0)
    split_shape = [n for pair in zip(times, source.shape) for n in pair]
    target = whole.reshape(split_shape)
    assert target is not None
    for axis in range(len(times)):
        source = source.unsqueeze(2 * axis)
    low.emit("copy", [target, source.expand(split_shape)])
