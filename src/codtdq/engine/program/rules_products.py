"""Rules of float products: Linear, convolutions, matrix products, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu.products import Window, float_panels
from codtdq.engine.program.layout import Place
from codtdq.engine.program.lowering import Lowering, argument, constant, floats, rows_of, rule
from codtdq.engine.program.rules_elementwise import optional
from codtdq.engine.program.tables import split
from codtdq.engine.program.traced import COMPACTIONS, Node, NotCapturable, Value
from codtdq.memory import release_memory

FLOAT, INT8 = 0, 1  # COD_ATTENTION_*


def packed(low: Lowering, key: str, source: Tensor, matrix: Any) -> Place:
    """The place of float weights [K, N], which `matrix` makes of a source, in panels."""

    def pack() -> tuple[Tensor, int, int]:
        weight = floats(matrix())
        return float_panels(weight), *weight.shape

    return low.constants.panels(*low.constants.pool.get(("packed", key), (source,), pack))


def geometry(window: Window) -> list[int]:
    """The 13 numbers of a convolution."""
    return [
        *window.maps,
        *window.out,
        *window.kernel,
        *window.stride,
        *window.padding,
        *window.dilation,
    ]


def linear(low: Lowering, value: Value, x: Place, weight: Place, bias: Place | None) -> None:
    """Compute y = x w + b for rows x [..., K]."""
    if x.shape[-1] > 1 and x.strides[-1] != 1:
        x = low.copied(x)
    rows = x.reshape((x.size // x.shape[-1], x.shape[-1])) or rows_of(low.copied(x))
    y = rows_of(low.output(value, uniform=True))
    window = Window((1, 1, rows.shape[0]))
    low.emit("conv", [y, rows, weight, bias, None], [*geometry(window), 0])


@rule("aten.addmm.default")
def addmm(low: Lowering, node: Node) -> None:
    """Compute b + x w."""
    bias, x, weight = node.args
    if node.settings or not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
        raise NotCapturable("an addmm whose weight depends on the input")
    if bias.ndim != 1:
        raise NotCapturable(f"an addmm that adds {tuple(bias.shape)}")
    panels = packed(low, "linear", weight, lambda: weight)
    linear(low, node.outputs[0], low.place(x), panels, optional(low, bias))


@rule("aten.mm.default", "aten.bmm.default", "aten.baddbmm.default")
def matmul(low: Lowering, node: Node) -> None:
    """Products of matrices, with or without something added."""
    added = node.args[0] if "baddbmm" in node.name else None
    x, z = node.args[-2:]
    value = node.outputs[0]
    if isinstance(z, Tensor) and z.ndim == 2:
        panels = packed(low, "linear", z, lambda: z)
        linear(low, value, low.place(x), panels, None)
        return
    a, b = low.place(x), low.place(z)
    if isinstance(x, Tensor) and a.shape[0] > 1 and a.strides[0] == 0:
        a = low.constants.place(x.detach())
    if a.strides[-1] != 1 and a.shape[-1] > 1:
        if b.strides[-2] == 1 and a.strides[-2] == 1:
            a = low.copied(a)
        elif b.strides[-2] == 1 or b.shape[-2] == 1:  # y' = z' x'
            a, b = (
                b.permute((*range(b.shape.__len__() - 2), -1, -2)),
                a.permute((*range(len(a.shape) - 2), -1, -2)),
            )
            turned = (*range(len(value.shape) - 2), len(value.shape) - 1, len(value.shape) - 2)
            y = low.output(value, turned).permute(turned)
            low.emit("matmul", [y, a, b])
            _add(low, node, value, added)
            return
        else:
            a = low.copied(a)
    low.emit("matmul", [low.output(value), a, b])
    _add(low, node, value, added)


def _add(low: Lowering, node: Node, value: Value, added: Any) -> None:
    if added is None:
        return
    if node.settings.get("alpha", 1) != 1 or node.settings.get("beta", 1) != 1:
        raise NotCapturable("a baddbmm with factors")
    y = low.places[value]
    low.emit("binary", [y, y, low.place(added).expand(value.shape)], [0])


def _pair(values: Sequence[int], blank: int) -> tuple[int, int]:
    return (blank, values[0]) if len(values) == 1 else (values[0], values[1])


@rule("aten.convolution.default")
def convolution(low: Lowering, node: Node) -> None:
    """Dense, in groups, or depthwise."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    weight = constant(weight)
    if transposed:
        raise NotCapturable("a transposed convolution")
    value = node.outputs[0]
    maps, y = low.maps(x, uniform=True), low.output_maps(value)
    kernel = _pair(weight.shape[2:], 1)
    window = Window(
        (maps.shape[0], maps.shape[1], maps.shape[2]),
        kernel,
        *(_pair(given, blank) for given, blank in zip((stride, padding, dilation), (1, 0, 1))),
    )
    channels, outputs = maps.shape[3], weight.shape[0]
    shift = optional(low, bias)
    if groups > 1 and groups == channels == outputs:
        taps = low.constants.made(
            "taps", (weight,), lambda: floats(weight).flatten(1).t().contiguous()
        )
        low.emit("depthwise", [y, maps, taps, shift], [*geometry(window), 0])
        return
    each, own = outputs // groups, channels // groups
    for group in range(groups):
        panels = packed(
            low,
            f"conv {group} of {groups}",
            weight,
            lambda g=group: (
                weight[g * each : (g + 1) * each].detach().flatten(2).permute(2, 1, 0).flatten(0, 1)
            ),
        )
        low.emit(
            "conv",
            [
                rows_of(y).slice(1, group * each, each),
                rows_of(maps).slice(1, group * own, own),
                panels,
                None if shift is None else shift.slice(0, group * each, each),
                None,
            ],
            [*geometry(window), 0],
        )


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def _compact_mask(node: Node, known: list[Tensor]) -> None:
    """A mask that is a constant becomes a tuple of tables, which are added one after the other."""
    mask = node.settings.get("attn_mask")
    if not isinstance(mask, Tensor):
        return
    if len(mask) > 1:
        release_memory()  # of the large table before, which is gone by now: holes would add up
    if mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    parts = split(mask, known)
    if parts is not None and not any(one is parts[1] for one in known):
        known.append(parts[1])
    node.settings["attn_mask"] = parts or (mask,)


COMPACTIONS[ATTENTION] = _compact_mask


@rule(ATTENTION)
def attention(low: Lowering, node: Node) -> None:
    """softmax(q k' / sqrt d + mask) v: with 8-bit products in a network that is quantized."""
    q, k, v = (low.place(one) for one in node.args[:3])
    if argument(node, 4, "is_causal", False):
        raise NotCapturable("causal attention")
    mask = node.settings.get("attn_mask")
    value = node.outputs[0]  # [B, heads, N, E]
    y = low.output(value, (0, 2, 1, 3))  # heads side by side: what follows joins them
    scale = node.settings.get("scale")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = (one if one.strides[-1] == 1 else low.copied(one) for one in (q, k, v))
    tables = [] if mask is None else _tables(low, mask, (*value.shape[:3], k.shape[2]))
    products = INT8 if any(one.name == "quantized" for one in low.nodes) else FLOAT
    low.emit("attention", [y, q, k, v, *tables, *[None] * (3 - len(tables))], [products], [scale])


def _tables(low: Lowering, mask: tuple[Tensor, ...] | Value, shape: tuple[int, ...]) -> list[Place]:
    """What is added to scores of a shape: a table, or two that give it."""
    given = [mask] if isinstance(mask, Value) else [_once(low, one) for one in mask]
    places = [low.place(one) for one in given]
    dense = [
        one if one.strides[-1] == 1 or one.shape[-1] == 1 else low.copied(one) for one in places
    ]
    return [one.expand(shape) for one in dense]


def _once(low: Lowering, table: Tensor) -> Tensor:
    """Once for all layers and programs that have the same one: known by what is in it."""
    return low.constants.pool.same(table)
