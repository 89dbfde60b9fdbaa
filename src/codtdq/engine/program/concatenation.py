"""Concatenation as addressing: who computes a part writes it to its place in the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from codtdq.engine.program.traced import Node, Value

if TYPE_CHECKING:
    from codtdq.engine.program.lowering import Lowering

# operations that are views, whose results have no memory of their own
VIEWS = {
    "view",
    "_unsafe_view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "expand",
    "unbind",
    "split",
    "split_with_sizes",
    "alias",
    "detach",
    "clone",
    "contiguous",
    "_to_copy",
    "lift_fresh",
    "cat",
    "stack",
}


def parts_of(node: Node) -> tuple[list[Any], int]:
    """(parts, axis) of a concatenation."""
    parts = list(node.args[0])
    axis = node.args[1] if len(node.args) > 1 else node.settings.get("dim", 0)
    return parts, int(axis) % len(node.outputs[0].shape)


def wish(lowering: Lowering) -> None:
    """Lay out every concatenation and tell the makers of its parts where they belong."""
    for node in lowering.nodes:
        if node.name != "aten.cat.default":
            continue
        value = node.outputs[0]
        parts, axis = parts_of(node)
        order = (0, 2, 3, 1) if len(value.shape) == 4 else tuple(range(len(value.shape)))
        whole = lowering.new(value.shape, order)
        lowering.places[value] = whole
        start = 0
        for part in parts:
            length = int(part.shape[axis])
            if isinstance(part, Value) and part.maker is not None:
                short = part.maker.name.split(".")[1] if "." in part.maker.name else ""
                if short not in VIEWS and part not in lowering.wishes:
                    lowering.wishes[part] = whole.slice(axis, start, length)
            start += length
