"""What a scheme tells an engine about itself, so that it can execute it: its lowered form."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from codtdq.numerics.spec import ActivationSpec

MAX_GROUP = 128  # values that share a scale, at most; an engine's header repeats it
MAX_TRIALS = 16
LEAST_UNIT, LARGEST_UNIT = 1e-30, 1e27  # beyond, steps or their reciprocals are denormal
MOST_BITS = 7  # of codes: q - z is an int8


class GroupGrid(NamedTuple):
    """How groups get their grid."""

    bits: int
    group: int  # channels of a token, or pixels of a channel
    trials: int
    zero_weight: float
    zero_point: str  # none, inside or wide
    pixels: bool  # groups run along the pixels
    unit: float = 0.0  # scales are E4M3 multiples of it; 0: of a float32 that each image has

    def unsupported_reason(self) -> str | None:
        """Why the engine does not take such groups; None if it does."""
        if not 2 <= self.bits <= (4 if self.zero_point == "wide" else MOST_BITS):
            return f"{self.bits}-bit codes with a zero-point do not fit a signed byte"
        if self.group > MAX_GROUP:
            return f"groups of {self.group}, more than {MAX_GROUP}"
        if self.trials > MAX_TRIALS:
            return f"{self.trials} scales to weigh, more than {MAX_TRIALS}"
        if self.unit and not LEAST_UNIT <= self.unit <= LARGEST_UNIT:
            return f"scales in units of {self.unit:g}"
        return None

    @property
    def reach(self) -> int:
        """Bits of a symmetric code that is as large as q - z may be."""
        return 8 if self.zero_point == "wide" else self.bits


class RowTransform(NamedTuple):
    """y = R((x[order] - shift) / scale) of every token; vectors [C], all in the new order."""

    shift: Tensor | None = None  # float32
    scale: Tensor | None = None  # float32
    order: Tensor | None = None  # int32
    hadamard: bool = False


@dataclass(frozen=True)
class ProjectedForm:
    """Symmetric codes under ranges that DCRP projects, or under fixed radii ([1] or [C])."""

    spec: ActivationSpec
    radius: Tensor | None = None

    @property
    def content(self) -> Hashable:
        """What operators must agree on to share the codes of one input; fixed radii never do."""
        return self.spec if self.radius is None else id(self)


@dataclass(frozen=True)
class SearchedForm:
    """Codes with a zero-point under grids that are searched group by group, maybe transformed."""

    grid: GroupGrid
    transform: RowTransform | None = None

    @property
    def content(self) -> Hashable:
        """What operators must agree on to share the codes of one input."""
        parts = self.transform
        change = None if parts is None else (*map(_content, parts[:3]), parts.hadamard)
        return self.grid, change


LoweredInput = ProjectedForm | SearchedForm


@dataclass(frozen=True)
class LoweredWeight:
    """A weight of at most 4 bits."""

    codes: Tensor  # int8 [O, taps, I] in -8..7
    scale: Tensor  # float32 [O, 1], or [O, taps * ceil(I / group)]
    factor: Tensor | None  # float32 [O, 1] that multiplies the scales of groups
    group: int | None  # inputs of a tap that share a scale; None: all


@dataclass(frozen=True)
class Unlowered:
    """A scheme that no engine executes."""

    reason: str


def _content(vector: Tensor | None) -> tuple[float, ...] | None:
    return None if vector is None else tuple(vector.tolist())
