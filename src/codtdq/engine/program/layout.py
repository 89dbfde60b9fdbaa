"""Where tensors lie: strided views of buffers, and what views do to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class Space(IntEnum):
    """COD_SPACE_*."""

    NONE = 0
    ARENA = 1
    CONSTANT = 2
    INPUT = 3
    OUTPUT = 4


class Type(IntEnum):
    """COD_TYPE_*."""

    F32 = 0
    I8 = 1
    U8 = 2
    I32 = 3
    I64 = 4

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return (4, 1, 1, 4, 8)[self]


@dataclass(eq=False)
class Buffer:
    """Memory: of the arena until it is made an output, or a constant or input by its number."""

    bytes: int
    space: Space = Space.ARENA
    number: int = 0
    offset: int = -1  # in the arena, once it is planned


@dataclass(frozen=True)
class Place:
    """A view of a buffer; offset in elements."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    type: Type = Type.F32

    @property
    def dense(self) -> bool:
        """Whether it lies without gaps in the order of its axes."""
        return all(n == 1 or s == d for n, s, d in zip(self.shape, self.strides, dense(self.shape)))

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def permute(self, axes: Sequence[int]) -> Place:
        """The same memory with its axes in another order."""
        axes = [axis % len(self.shape) for axis in axes]
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in axes),
            strides=tuple(self.strides[axis] for axis in axes),
        )

    def slice(self, axis: int, start: int, length: int, step: int = 1) -> Place:
        """A part of an axis."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = length, strides[axis] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def select(self, axis: int, index: int) -> Place:
        """One index of an axis, which vanishes."""
        part = self.slice(axis, index, 1)
        return replace(
            part,
            shape=part.shape[:axis] + part.shape[axis + 1 :],
            strides=part.strides[:axis] + part.strides[axis + 1 :],
        )

    def unsqueeze(self, axis: int) -> Place:
        """A new axis of length 1."""
        return replace(
            self,
            shape=(*self.shape[:axis], 1, *self.shape[axis:]),
            strides=(*self.strides[:axis], 0, *self.strides[axis:]),
        )

    def expand(self, shape: Sequence[int]) -> Place:
        """Repeated along axes of length 1, and along new ones in front."""
        lead = len(shape) - len(self.shape)
        own_shape, own_strides = (1,) * lead + self.shape, (0,) * lead + self.strides
        wanted = [have if want == -1 else want for want, have in zip(shape, own_shape)]
        strides = [0 if n == 1 else s for n, s in zip(own_shape, own_strides)]
        return replace(self, shape=tuple(wanted), strides=tuple(strides))

    def reshape(self, shape: Sequence[int]) -> Place | None:
        """The same memory under another shape, or None where that needs a copy."""
        strides = reshaped(self.shape, self.strides, shape)
        return None if strides is None else replace(self, shape=tuple(shape), strides=strides)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps."""
    found, step = [], 1
    for n in reversed(shape):
        found.append(step)
        step *= n
    return tuple(reversed(found))


def ordered(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps where axes lie in `order`, the last one innermost."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def order_of(place: Place) -> list[int]:
    """Axes of a view, outermost first; repeated ones in front."""
    return sorted(
        range(len(place.shape)),
        key=lambda axis: (place.strides[axis] != 0, -place.strides[axis], axis),
    )


def reshaped(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of the same memory under another shape; None if there are none."""
    runs: list[tuple[int, int]] = []  # (elements, innermost stride) of axes that lie side by side
    for n, s in zip(shape, strides):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * s:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    found: list[int] = []
    left, step = 1, 0  # of the run that is being cut, from its end
    for n in reversed(list(wanted)):
        if n == 1:
            found.append(0)
            continue
        if left == 1:
            if not runs:
                return None
            left, step = runs.pop()
        if left % n:
            return None
        found.append(step)
        left, step = left // n, step * n
    return tuple(reversed(found)) if left == 1 and not runs else None
