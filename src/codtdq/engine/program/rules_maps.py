"""Rules of operations on maps: resizing, pooling, sampling, padding, rolling, indices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from codtdq.engine.program.layout import Place, order_of
from codtdq.engine.program.lowering import Lowering, argument, constant, rule
from codtdq.engine.program.traced import Node, NotCapturable


def _step(inside: int, outside: int, aligned: bool, given: Any) -> float:
    """Input pixels for an output pixel, as torch computes it."""
    if aligned:
        return (inside - 1) / (outside - 1) if outside > 1 else 0.0
    return 1.0 / given if given is not None and given > 0 else inside / outside


@rule(
    "aten.upsample_bilinear2d.default",
    "aten.upsample_nearest2d.default",
    "aten._upsample_nearest_exact2d.default",
)
def resize(low: Lowering, node: Node) -> None:
    """Maps of another size."""
    mode = ("bilinear" not in node.name) + ("exact" in node.name)
    aligned = bool(node.args[2]) if mode == 0 else False
    scales = [
        argument(node, (3 if mode == 0 else 2) + i, f"scales_{side}") for i, side in enumerate("hw")
    ]
    x, y = low.maps(node.args[0]), low.output_maps(node.outputs[0])
    steps = [_step(x.shape[1 + i], y.shape[1 + i], aligned, scales[i]) for i in range(2)]
    low.emit("resize", [y, x], [mode, aligned], steps)


def _two(values: Any, default: Sequence[int]) -> list[int]:
    found = list(values or default)
    return found * 2 if len(found) == 1 else found


@rule("aten.avg_pool2d.default", "aten.max_pool2d_with_indices.default")
def pool(low: Lowering, node: Node) -> None:
    """Averages or largest values of windows."""
    maximum = "max" in node.name
    kernel = _two(node.args[1], ())
    stride, padding = (
        _two(argument(node, 2, "stride"), kernel),
        _two(argument(node, 3, "padding"), (0,)),
    )
    counted = not maximum and bool(argument(node, 5, "count_include_pad", True))
    if maximum and set(_two(argument(node, 4, "dilation"), (1,))) != {1}:
        raise NotCapturable("a dilated maximum")
    if not maximum and argument(node, 6, "divisor_override") is not None:
        raise NotCapturable("an average with another divisor")
    x, y = low.maps(node.args[0]), low.output_maps(node.outputs[0])
    low.emit("pool", [y, x], [int(maximum), *kernel, *stride, *padding, counted])


@rule("aten._adaptive_avg_pool2d.default", "aten.adaptive_max_pool2d.default")
def adaptive_pool(low: Lowering, node: Node) -> None:
    """Windows that follow from the sizes."""
    mode = 3 if "max" in node.name else 2
    x, y = low.maps(node.args[0]), low.output_maps(node.outputs[0])
    low.emit("pool", [y, x], [mode, 1, 1, 1, 1, 0, 0, 0])


@rule("aten.grid_sampler_2d.default")
def sample(low: Lowering, node: Node) -> None:
    """Bilinear samples at given points, zeros outside."""
    x, grid, mode, padding, aligned = node.args
    if mode != 0 or padding != 0:
        raise NotCapturable("a grid sample that is not bilinear with zeros outside")
    maps, y = low.maps(x), low.output_maps(node.outputs[0])
    low.emit("sample", [y, maps, low.place(grid)], [int(aligned)])


def gather(low: Lowering, node: Node, tables: dict[int, Tensor], fill: float = 0.0) -> None:
    """y[i, j, ...] = x[table[i], table[j], ...]; -1 reads `fill`."""
    x, value = low.place(node.args[0]), node.outputs[0]
    order = order_of(x)
    y = low.output(value, order)
    operands: list[Place | None] = [y.permute(order), x.permute(order)]
    for axis in order:
        table = tables.get(axis)
        if table is None:
            operands.append(None)
            continue
        key = ("table", tuple(table.tolist()))
        made = low.constants.pool.get(key, (), partial(_as_table, table))
        operands.append(low.constants.raw(made))
    low.emit("gather", operands, floats=[fill])


def _as_table(indices: Tensor) -> Tensor:
    return indices.to(torch.int32).contiguous()


@rule("aten.roll.default")
def roll(low: Lowering, node: Node) -> None:
    """Axes turned round."""
    shifts, axes = node.args[1], argument(node, 2, "dims", [])
    shape = node.outputs[0].shape
    if not axes:
        raise NotCapturable("a roll over all axes at once")
    gather(
        low,
        node,
        {
            axis % len(shape): (torch.arange(shape[axis]) - shift) % shape[axis]
            for axis, shift in zip(axes, shifts)
            if shift % shape[axis]
        },
    )


@rule("aten.constant_pad_nd.default")
def pad(low: Lowering, node: Node) -> None:
    """A margin of one value."""
    x, margins = low.place(node.args[0]), node.args[1]
    tables = {}
    for pair in range(len(margins) // 2):
        before, after = margins[2 * pair : 2 * pair + 2]
        axis = len(x.shape) - 1 - pair
        at = torch.arange(-before, x.shape[axis] + after)
        if before or after:
            tables[axis] = torch.where((at >= 0) & (at < x.shape[axis]), at, -1)
    gather(low, node, tables, float(argument(node, 2, "value", 0)))


@rule(
    "aten.reflection_pad2d.default",
    "aten.replication_pad2d.default",
    "aten.reflection_pad1d.default",
)
def mirror(low: Lowering, node: Node) -> None:
    """A margin that repeats the map."""
    x, margins = low.place(node.args[0]), node.args[1]
    tables = {}
    for pair in range(len(margins) // 2):
        before, after = margins[2 * pair : 2 * pair + 2]
        axis = len(x.shape) - 1 - pair
        last = x.shape[axis] - 1
        at = torch.arange(-before, x.shape[axis] + after)
        reflected = last - (last - at.abs()).abs()
        tables[axis] = reflected if "reflection" in node.name else at.clamp(0, last)
    gather(low, node, tables)


@rule("aten.index_select.default")
def index_select(low: Lowering, node: Node) -> None:
    """Given indices of an axis."""
    axis = node.args[1] % len(node.outputs[0].shape)
    gather(low, node, {axis: constant(node.args[2])})


@rule("aten.flip.default")
def flip(low: Lowering, node: Node) -> None:
    """Axes in reverse."""
    shape = node.outputs[0].shape
    gather(low, node, {a % len(shape): torch.arange(shape[a] - 1, -1, -1) for a in node.args[1]})


@rule("aten.pixel_shuffle.default", "aten.pixel_unshuffle.default")
def shuffle(low: Lowering, node: Node) -> None:
    """Channels to pixels, or back."""
    x, r = low.place(node.args[0]), node.args[1]
    batch, channels, height, width = x.shape
    if "unshuffle" in node.name:
        parts = x.reshape((batch, channels, height // r, r, width // r, r))
        order = (0, 1, 3, 5, 2, 4)
    else:
        parts = x.reshape((batch, channels // (r * r), r, r, height, width))
        order = (0, 1, 4, 2, 5, 3)
    assert parts is not None  # cutting axes is always a view
    y = low.output(node.outputs[0])
    turned = parts.permute(order)
    target = y.reshape(turned.shape)
    assert target is not None
    low.emit("copy", [target, turned])
