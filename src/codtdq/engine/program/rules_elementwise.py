"""Rules of elementwise operations, norms, softmax and sums."""

from __future__ import annotations

import math
from typing import Any

import torch

from codtdq.engine.program.layout import Place
from codtdq.engine.program.lowering import Lowering, argument, constant, number, rule
from codtdq.engine.program.traced import Node, NotCapturable, Value

UNARY = {
    "relu": 1,
    "gelu": 2,
    "gelu_tanh": 3,
    "sigmoid": 4,
    "silu": 5,
    "tanh": 6,
    "hardswish": 7,
    "hardsigmoid": 8,
    "exp": 9,
    "sqrt": 10,
    "rsqrt": 11,
    "abs": 12,
    "neg": 13,
    "reciprocal": 14,
    "clamp": 15,
    "cos": 16,
    "sin": 17,
    "leaky_relu": 18,
    "floor": 19,
    "square": 20,
}
BINARY = {"add": 0, "sub": 1, "mul": 2, "div": 3, "maximum": 4, "minimum": 5}
REDUCTIONS = {"sum": 0, "mean": 1, "amax": 2, "norm": 3}
PLAIN = (
    *("relu", "sigmoid", "silu", "tanh", "hardswish", "hardsigmoid"),
    *("exp", "sqrt", "rsqrt", "abs", "neg", "reciprocal", "cos", "sin", "floor"),
)


def unary(low: Lowering, node: Node, op: str, a: float = 0.0, b: float = 0.0) -> None:
    """Compute y = f(x)."""
    x = low.place(node.args[0])
    y = low.output_like(node.outputs[0], x)
    low.emit("unary", [y, x], [UNARY[op]], [a, b])


@rule(*(f"aten.{name}{end}.default" for name in PLAIN for end in ("", "_")))
def plain(low: Lowering, node: Node) -> None:
    """A function without settings."""
    unary(low, node, node.name.split(".")[1].rstrip("_"))


@rule("aten.gelu.default", "aten.gelu_.default")
def gelu(low: Lowering, node: Node) -> None:
    """GELU, exact or by tanh."""
    unary(low, node, "gelu_tanh" if argument(node, 1, "approximate") == "tanh" else "gelu")


@rule("aten.leaky_relu.default", "aten.leaky_relu_.default")
def leaky(low: Lowering, node: Node) -> None:
    """Keep x, or a part of it below zero."""
    unary(low, node, "leaky_relu", number(argument(node, 1, "negative_slope"), 0.01))


@rule(
    "aten.clamp.default", "aten.clamp_.default", "aten.hardtanh.default", "aten.hardtanh_.default"
)
def clamp(low: Lowering, node: Node) -> None:
    """Keep x between two bounds."""
    lowest = -1.0 if "hardtanh" in node.name else -math.inf
    unary(
        low,
        node,
        "clamp",
        number(argument(node, 1, "min"), lowest),
        number(argument(node, 2, "max"), -lowest),
    )


@rule("aten.clamp_min.default", "aten.clamp_min_.default")
def clamp_min(low: Lowering, node: Node) -> None:
    """Keep x above a bound."""
    unary(low, node, "clamp", float(node.args[1]), math.inf)


@rule("aten.clamp_max.default")
def clamp_max(low: Lowering, node: Node) -> None:
    """Keep x below a bound."""
    unary(low, node, "clamp", -math.inf, float(node.args[1]))


@rule("aten.pow.Tensor_Scalar")
def power(low: Lowering, node: Node) -> None:
    """Squares, roots and reciprocals."""
    known = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if node.args[1] not in known:
        raise NotCapturable(f"a power of {node.args[1]}")
    unary(low, node, known[node.args[1]])


def binary(low: Lowering, value: Value, op: str, x: Place, z: Place) -> Place:
    """Compute y = f(x, z), broadcast."""
    y = low.output_like(value, x, z)
    low.emit("binary", [y, x.expand(value.shape), z.expand(value.shape)], [BINARY[op]])
    return y


@rule(
    *(
        f"aten.{name}{end}.{kind}"
        for name in ("add", "sub", "mul", "div")
        for end in ("", "_")
        for kind in ("Tensor", "Scalar")
    ),
    "aten.maximum.default",
    "aten.minimum.default",
)
def arithmetic(low: Lowering, node: Node) -> None:
    """Compute x + z and the like; add and sub may multiply z first."""
    op = node.name.split(".")[1].rstrip("_")
    x, z = low.place(node.args[0]), low.place(node.args[1])
    alpha = argument(node, 2, "alpha", 1)
    if alpha != 1 and op in ("add", "sub"):
        scaled = low.new(z.shape)
        low.emit("binary", [scaled, z, low.place(alpha).expand(z.shape)], [BINARY["mul"]])
        z = scaled
    if node.settings.get("rounding_mode") is not None:
        raise NotCapturable("a division that rounds")
    binary(low, node.outputs[0], op, x, z)


@rule("aten.rsub.Scalar")
def rsub(low: Lowering, node: Node) -> None:
    """A number minus x."""
    binary(low, node.outputs[0], "sub", low.place(node.args[1]), low.place(node.args[0]))


def optional(low: Lowering, x: Any) -> Place | None:
    """A constant vector that may be left out."""
    if x is None:
        return None
    return low.constants.place(constant(x).detach().contiguous())


@rule("aten.native_layer_norm.default")
def layer_norm(low: Lowering, node: Node) -> None:
    """Over the last axes."""
    x, shape, weight, bias, eps = node.args
    place = low.rows_last(x)
    value, lead = node.outputs[0], len(node.outputs[0].shape) - len(shape)
    size = math.prod(shape)
    if len(shape) == 1:
        y = low.output(value)
        low.emit("norm", [y, place, optional(low, weight), optional(low, bias)], floats=[eps])
        return
    flat = place.reshape((*value.shape[:lead], size)) or low.copied(place).reshape(
        (*value.shape[:lead], size)
    )
    y = low.new(value.shape)
    low.places[value] = y
    parts = [None if one is None else constant(one).detach().reshape(-1) for one in (weight, bias)]
    rows = y.reshape((*value.shape[:lead], size))
    low.emit("norm", [rows, flat, *(optional(low, one) for one in parts)], floats=[eps])


@rule("aten.native_group_norm.default")
def group_norm(low: Lowering, node: Node) -> None:
    """Over groups of channels of an image."""
    x, weight, bias, batch, channels, positions, groups, eps = node.args
    value = node.outputs[0]
    if len(value.shape) not in (3, 4):
        raise NotCapturable(f"a group norm over {len(value.shape)} axes")
    place, y = low.maps(x, uniform=True), low.output_maps(value)
    shape = (batch, positions, channels)
    both = [y.reshape(shape), place.reshape(shape)]
    low.emit("group_norm", [*both, optional(low, weight), optional(low, bias)], [groups], [eps])


@rule("aten.native_batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(low: Lowering, node: Node) -> None:
    """A factor and an offset for each channel."""
    x, weight, bias, mean, var = node.args[:5]
    if "no_training" in node.name:
        eps = node.args[6]
    elif node.args[5]:
        raise NotCapturable("a batch norm in training mode")
    else:
        eps = node.args[7]
    factor, offset = affine(weight, bias, mean, var, eps)
    value = node.outputs[0]
    shape = [-1 if axis == 1 else 1 for axis in range(len(value.shape))]
    place = low.place(x)
    y = low.output_like(value, place)
    factors = low.constants.place(factor.float().view(shape)).expand(value.shape)
    offsets = low.constants.place(offset.float().view(shape)).expand(value.shape)
    low.emit("binary", [y, place, factors], [BINARY["mul"]])
    low.emit("binary", [y, y, offsets], [BINARY["add"]])


def affine(
    weight: Any, bias: Any, mean: Any, var: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(factor, offset) of a batch norm, float64."""
    factor = (constant(var).double() + eps).rsqrt()
    if weight is not None:
        factor = factor * constant(weight).detach().double()
    offset = -constant(mean).double() * factor
    if bias is not None:
        offset = offset + constant(bias).detach().double()
    return factor, offset


@rule("aten._softmax.default")
def softmax(low: Lowering, node: Node) -> None:
    """Along an axis."""
    value = node.outputs[0]
    axis = node.args[1] % len(value.shape)
    order = [one for one in range(len(value.shape)) if one != axis] + [axis]
    x = low.place(node.args[0]).permute(order)
    if x.shape[-1] > 1 and x.strides[-1] != 1:
        x = low.copied(x)
    y = low.output(value, order)
    low.emit("softmax", [y.permute(order), x])


@rule(
    "aten.mean.dim",
    "aten.sum.dim_IntList",
    "aten.amax.default",
    "aten.linalg_vector_norm.default",
    "aten.mean.default",
    "aten.sum.default",
)
def reduce(low: Lowering, node: Node) -> None:
    """Sums, means, largest values and lengths over axes."""
    short = node.name.split(".")[1]
    op = "norm" if short == "linalg_vector_norm" else short
    if op == "norm" and argument(node, 1, "ord", 2) != 2:
        raise NotCapturable(f"a norm of order {argument(node, 1, 'ord', 2)}")
    at = 2 if op == "norm" else 1
    x, value = low.place(node.args[0]), node.outputs[0]
    given = [] if node.name.endswith(("mean.default", "sum.default")) else argument(node, at, "dim")
    axes = sorted(axis % len(x.shape) for axis in (given or range(len(x.shape))))
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    y = low.output(value)
    flat = y.reshape(tuple(x.shape[axis] for axis in kept))
    assert flat is not None
    low.emit("reduce", [flat, x.permute([*kept, *axes])], [REDUCTIONS[op]])
