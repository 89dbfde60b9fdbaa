"""What a stored scheme may hold: rules for its settings, and for the numbers in its buffers.

A scheme declares both next to its constructor (`accepts`, `expected_buffers`). A checkpoint is
checked against them before a scheme is used, so that no file can name a width, a count or an index
that a kernel would believe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

# What is accepted, in words, if a value is not that; None: it is.
Rule = Callable[[Any], str | None]

LARGEST_COUNT = 2**31 - 1  # of positions, values, steps: what a kernel's 32-bit counters hold
LARGEST_GROUP = 1 << 16  # values that share a range
LARGEST_TRIALS = 128  # more scales than E4M3 has positive numbers
LARGEST_VALUE = 1e30  # of steps, scales, shifts: products of two stay within float32 times 448
LARGEST_AXES = 5  # of a weight
DEEPEST = 3  # schemes inside schemes
NAN_E4M3 = (0x7F, 0xFF)


class Stored(NamedTuple):
    """What one buffer may hold; its dtype is that of the buffer of a blank scheme."""

    shapes: tuple[tuple[int, ...], ...]  # any of these
    low: float = -LARGEST_VALUE
    high: float = LARGEST_VALUE
    permutation: bool = False  # of 0 .. length - 1; an empty one leaves the order as it is
    e4m3: bool = False  # bytes that are E4M3 numbers
    nibble: int | None = None  # largest number of either half of a byte


def one_of(
    *shapes: tuple[int, ...], low: float = -LARGEST_VALUE, high: float = LARGEST_VALUE
) -> Stored:
    """Numbers of a range in any of these shapes."""
    return Stored(shapes, low, high)


def order_of(channels: int) -> Stored:
    """An order of the channels, or none."""
    return Stored(((0,), (channels,)), 0, max(channels - 1, 0), permutation=True)


def unfit(tensor: Tensor, expected: Stored) -> str | None:
    """Why the content of a buffer is not what its scheme expects; None: it is."""
    if tuple(tensor.shape) not in expected.shapes:
        accepted = " or ".join(str(list(shape)) for shape in expected.shapes)
        return f"has shape {list(tensor.shape)}; accepted: {accepted}"
    if not tensor.numel():
        return None
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        return "holds NaN or infinity"
    low, high = (float(value) for value in torch.aminmax(tensor))
    if low < expected.low or high > expected.high:
        return f"holds {low:g} to {high:g}; accepted: {expected.low:g} to {expected.high:g}"
    if expected.e4m3 and any(bool((tensor == code).any()) for code in NAN_E4M3):
        return "holds an E4M3 scale that is NaN"
    if expected.nibble is not None:
        largest = int(torch.maximum(tensor & 15, tensor >> 4).max())
        if largest > expected.nibble:
            return f"holds {largest} in half a byte; accepted: at most {expected.nibble}"
    if expected.permutation and tensor.unique().numel() != tensor.numel():
        return "is not a permutation"
    return None


def whole(low: int, high: int = LARGEST_COUNT) -> Rule:
    """A whole number of a range."""

    def rule(value: Any) -> str | None:
        if type(value) is int and low <= value <= high:
            return None
        return f"a whole number from {low} to {high}"

    return rule


def number(low: float, high: float) -> Rule:
    """A finite number of a range."""

    def rule(value: Any) -> str | None:
        if type(value) in (int, float) and low <= value <= high:
            return None
        return f"a number from {low:g} to {high:g}"

    return rule


def word(*choices: str) -> Rule:
    """One of some words."""
    return lambda value: None if value in choices else ", ".join(choices)


def optional(rule: Rule) -> Rule:
    """Null, or what a rule accepts."""

    def wider(value: Any) -> str | None:
        accepted = None if value is None else rule(value)
        return None if accepted is None else f"{accepted}, or null"

    return wider


def several(rule: Rule, least: int, most: int) -> Rule:
    """A list of some length whose entries a rule accepts."""

    def each(value: Any) -> str | None:
        sound = isinstance(value, list) and least <= len(value) <= most
        if sound and all(rule(item) is None for item in value):
            return None
        return f"a list of {least} to {most} entries, each {rule(object())}"

    return each


def flag(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else "true, false"


def weight_shape(value: Any) -> str | None:
    """[O, I] or [O, I, *kernel]."""
    sides = isinstance(value, list) and 2 <= len(value) <= LARGEST_AXES
    if sides and all(type(side) is int and 1 <= side <= LARGEST_COUNT for side in value):
        if math.prod(value) <= LARGEST_COUNT:
            return None
    return f"a list of 2 to {LARGEST_AXES} whole numbers whose product is below 2^31"


def nested(value: Any) -> str | None:
    """The record of a scheme inside a scheme; not deeper than any method goes."""
    depth = 0
    while isinstance(value, Mapping):
        depth, value = depth + 1, value.get("inner")
    return None if 1 <= depth <= DEEPEST and value is None else "the record of a scheme"


def rules(**accepted: Rule) -> Mapping[str, Rule]:
    """What a scheme accepts of each of its settings."""
    return MappingProxyType(accepted)


BITS = whole(2, 8)
UNITS = ("token", "image", "channel")  # what has a float32 of its own under whole multipliers
GROUP = whole(1, LARGEST_GROUP)


def check_settings(
    settings: Mapping[str, Any], accepts: Mapping[str, Rule], required: frozenset[str]
) -> str | None:
    """Why settings do not build a scheme; None: they do."""
    for name, value in settings.items():
        rule = accepts.get(name)
        if rule is None:
            return f"has no setting {name!r}; known: {', '.join(accepts) or 'none'}"
        accepted = rule(value)
        if accepted is not None:
            return f"has {name} {_shown(value)}; accepted: {accepted}"
    missing = sorted(required - set(settings))
    return f"lacks {', '.join(missing)}" if missing else None


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}..."
