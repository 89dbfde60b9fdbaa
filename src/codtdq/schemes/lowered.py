"""What a scheme tells an engine about itself, so that it can execute it: its lowered form.

There is one form of each side: carriers (`numerics.carrier`), and how they are made.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from codtdq.numerics.carrier import whole_weight
from codtdq.numerics.carry import CarrySpec
from codtdq.numerics.packing import Nibbles

MAX_GROUP = 128  # values that share a multiplier, at most; an engine's header repeats it
MAX_TRIALS = 16
FLOAT_SCALES = "its scales are float, which is only simulated (engines take scales='integer')"


class RowTransform(NamedTuple):
    """y = R((x[order] - shift) / scale) of every token; vectors [C], all in the new order."""

    shift: Tensor | None = None  # float32
    scale: Tensor | None = None  # float32
    order: Tensor | None = None  # int32
    hadamard: bool = False


@dataclass(frozen=True)
class LoweredInput:
    """How an input becomes carriers."""

    how: CarrySpec
    step: Tensor | None = None  # float32 [1] or [C], of ranges that are fixed
    zero: Tensor | None = None  # their zero-points, float32
    transform: RowTransform | None = None

    @property
    def doubled(self) -> bool:
        """Whether a value is the sum of two carriers."""
        return self.zero is not None and self.how.bits == 8

    @property
    def content(self) -> Hashable:
        """What operators must agree on to share the carriers of one input; fixed steps never do."""
        if self.step is not None:
            return id(self)
        parts = self.transform
        change = None if parts is None else (*map(_content, parts[:3]), parts.hadamard)
        return self.how, change


@dataclass(frozen=True)
class LoweredWeight:
    """A weight w = factor p r, tap by tap."""

    # r: int8 [O, taps, I] in -8..7 (4 bits) or -127..127 (8 bits), or as they are stored
    held: Tensor | Nibbles
    factor: Tensor  # float32 [O]
    multiplier: Tensor | None = None  # p: int8 [O, taps, ceil(I / group)]; None: 1
    group: int | None = None  # inputs of a tap that share a multiplier; None: all
    bits: int = 4  # 4 or 8

    @property
    def shape(self) -> tuple[int, int, int]:
        """Outputs, taps, inputs."""
        outputs, taps, inputs = self.held.shape
        return outputs, taps, inputs

    @property
    def codes(self) -> Tensor:
        """Codes r in a byte each, unpacked whenever it is asked for: int8 [O, taps, I]."""
        return self.held.codes() if isinstance(self.held, Nibbles) else self.held

    def outputs(self, some: slice) -> LoweredWeight:
        """The weight of some outputs."""
        held, p = self.held, self.multiplier
        return replace(
            self,
            held=held.outputs(some) if isinstance(held, Nibbles) else held[some],
            factor=self.factor[some],
            multiplier=None if p is None else p[some],
        )

    def whole(self) -> Tensor:
        """Whole weights p r, int32 [O, taps, I]."""
        return whole_weight(self.codes, self.multiplier, self.group)


@dataclass(frozen=True)
class Unlowered:
    """A scheme that no engine executes."""

    reason: str


def _content(vector: Tensor | None) -> tuple[float, ...] | None:
    return None if vector is None else tuple(vector.tolist())
