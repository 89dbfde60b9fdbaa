"""Rules of quantized operators: an encoder, whose carriers all readers of a value share, and a
product; and of deformable convolutions, which stay float.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu.carry import depth_of
from codtdq.engine.cpu.products import ACTIVATIONS, Window
from codtdq.engine.program.layout import Buffer, Place, Type, dense
from codtdq.engine.program.lowering import Lowering, rows_of, rule
from codtdq.engine.program.rules_elementwise import optional
from codtdq.engine.program.rules_products import geometry, packed
from codtdq.engine.program.traced import Node, NotCapturable

Carried = tuple[Place, Place, int]  # data, unit, rows of a unit


@rule("quantized")
def quantized(low: Lowering, node: Node) -> None:
    """A Linear or convolution on carriers."""
    executor = node.settings["executor"]
    place, value = low.place(node.args[0]), node.outputs[0]
    if executor.sides is None:
        rows = _rows(low, place, place.shape[-1])
        window = Window((1, 1, rows.shape[0]))
        image = rows.shape[0]
        y = rows_of(low.output(value, uniform=True))
    else:
        if len(place.shape) == 3:
            place = place.unsqueeze(2)
        batch, channels, height, width = place.shape
        rows = _rows(low, place.permute((0, 2, 3, 1)), channels)
        window = Window((batch, height, width), *executor.sides)
        image = height * width
        y = rows_of(low.output_maps(value))
    carried = _carriers(low, executor.encoder, rows, image)
    executor.lower(_Emitter(low, carried, window, y))


class _Emitter:
    """What an executor calls to lower its product."""

    def __init__(self, low: Lowering, carried: Carried, window: Window, y: Place) -> None:
        self._low, self._carried, self._window, self._y = low, carried, window, y

    def product(self, weights: Any, bias: Tensor | None, activation: str) -> None:
        """A dense product."""
        self._product(weights, bias, activation, self._y, self._carried[0])

    def grouped(self, weights: list[Any], bias: Tensor | None, activation: str) -> None:
        """A convolution in groups: each reads its own channels and writes its own outputs."""
        each, _, channels = weights[0].shape
        if depth_of(channels) != channels:
            raise NotCapturable(
                f"a convolution in groups of {channels} channels, which do not fill rows"
            )
        for index, part in enumerate(weights):
            own = None if bias is None else bias[index * each : (index + 1) * each].contiguous()
            data = self._carried[0].slice(1, index * channels, channels)
            y = self._y.slice(1, index * each, each)
            self._product(part, own, activation, y, data)

    def _product(
        self, weights: Any, bias: Tensor | None, activation: str, y: Place, data: Place
    ) -> None:
        low, each = self._low, self._carried[2]
        _, taps, inputs = weights.shape
        low.emit(
            "carrier_product",
            [
                *(y, data, self._carried[1], *low.constants.weight(weights)),
                *(optional(low, bias), None, None),  # gains and rows to add: see epilogues.py
            ],
            [
                *geometry(self._window),
                *(each, taps, inputs, weights.bits, weights.group, ACTIVATIONS[activation]),
            ],
        )

    def depthwise(self, parts: list[tuple[Tensor, Tensor, Tensor | None]], activation: str) -> None:
        """A depthwise convolution; with several parts, output c n + i is that of part i."""
        low, (data, unit, each), times = self._low, self._carried, len(parts)
        for index, (taps, factor, bias) in enumerate(parts):
            y = self._y
            target = y
            if times > 1:
                target = low.new((y.shape[0], y.shape[1] // times))
            low.emit(
                "carrier_depthwise",
                [
                    target,
                    data,
                    unit,
                    low.constants.raw(taps),
                    low.constants.raw(factor),
                    optional(low, bias),
                ],
                [*geometry(self._window), each, ACTIVATIONS[activation]],
            )
            if times > 1:
                low.emit("copy", [y.slice(1, index, y.shape[1] // times, times), target])


def _rows(low: Lowering, place: Place, channels: int) -> Place:
    """[..., C] as rows at one distance."""
    shape = (place.size // channels, channels)
    return place.reshape(shape) or rows_of(low.copied(place))


def _carriers(low: Lowering, encoder: Any, x: Place, image: int) -> Carried:
    """The carriers of rows: those that another operator asked for, if it agrees."""
    key = ("carriers", x, image, encoder.key)
    if key not in low.kept:
        low.kept[key] = _encode(low, encoder, x, image)
    found: Carried = low.kept[key]
    return found


def _encode(low: Lowering, encoder: Any, x: Place, image: int) -> Carried:
    how, constants = encoder.how, low.constants
    rows, channels = x.shape
    each = 1 if how.unit == "token" else max(image, 1)
    doubled = encoder.zero is not None and how.bits == 8
    data = low.bytes(rows, depth_of(channels * (2 if doubled else 1)))
    shape = (-(-rows // each), channels) if how.unit == "channel" else (-(-rows // each),)
    unit = Place(Buffer(4 * _product(shape)), shape, dense(shape), type=Type.F32)
    searched = [each, how.bits, how.group, how.trials, how.asymmetric]
    if how.ranges == "pixel":
        group = min(how.group, each)
        ints = [each, how.bits, group, how.trials, how.asymmetric, 0]
        low.emit("carry_pixels", [data, unit, x], ints, [how.zero_weight], writes=2)
    elif how.ranges == "group" and how.bounds is None:
        shift, scale, order, hadamard = encoder.transform
        inverse = None if scale is None else constants.made("inverse", (scale,), lambda: 1 / scale)
        parts = [optional(low, shift), optional(low, scale), inverse]
        places = [*parts, None if order is None else constants.raw(order.to(torch.int32))]
        ints = [*searched, hadamard]
        low.emit("carry_tokens", [data, unit, x, *places], ints, [how.zero_weight], writes=2)
    elif how.ranges == "group":
        bits, group, literal, guarded, percentile, tau, zero = encoder.settings
        used = [one is not None for one in (percentile, tau, zero)]
        low.emit(
            "carry_groups",
            [data, unit, x],
            [each, bits, group, literal, guarded, *used, how.asymmetric],
            [percentile or 0.0, tau or 0.0, zero or 0.0],
            writes=2,
        )
    else:
        _encode_shared(low, encoder, [data, unit, x], each)
    return data, unit, each


def _encode_shared(low: Lowering, encoder: Any, places: list[Place | None], each: int) -> None:
    """A step that all tokens share: given, or that of the largest value."""
    how, x = encoder.how, places[2]
    assert x is not None
    act, step, zero = how.bounds, None, None
    count = x.shape[1] if how.ranges == "channel" else 1
    if encoder.step is not None:
        count = encoder.step.numel()
        step = low.constants.raw(encoder.step.detach().float().contiguous())
        if encoder.zero is not None:
            zero = low.constants.raw(encoder.zero.to(torch.int32).contiguous())
    elif act.tau is not None or act.zero_ratio is not None or act.percentile:
        raise NotCapturable("a range that is shared by all tokens and projected")
    low.emit("carry_fixed", [*places, step, zero], [each, how.bits, count], writes=2)


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


@rule("deform3x3")
def deform(low: Lowering, node: Node) -> None:
    """A deformable 3x3 convolution."""
    x, offsets = node.args
    weight, bias = node.settings["weight"], node.settings["bias"]
    maps = low.maps(x, uniform=True)
    if not maps.dense:
        maps = low.copied(maps)
    y = rows_of(low.output_maps(node.outputs[0]))
    panels = packed(low, "deform", weight, lambda: weight)
    operands = [y, rows_of(maps), low.place(offsets), panels, optional(low, bias)]
    low.emit("deform", operands)
