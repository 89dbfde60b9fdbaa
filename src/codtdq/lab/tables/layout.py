"""A table before it is written in some style: columns, groups of lines, notes, records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

MISSING = "-"


@dataclass(frozen=True)
class Metric:
    """How a score is called, and which way is better."""

    key: str
    latex: str
    higher: bool = True

    @property
    def arrow(self) -> str:
        """The way that is better."""
        return "↑" if self.higher else "↓"


METRICS = {
    metric.key: metric
    for metric in (
        Metric("S", r"$S_\alpha$"),
        Metric("wF", r"$F^{\omega}_{\beta}$"),
        Metric("E_mean", r"$E_{\mathrm{mean}}$"),
        Metric("E_max", r"$E_{\max}$"),
        Metric("E_adp", r"$E_{\mathrm{adp}}$"),
        Metric("F_mean", r"$F_{\mathrm{mean}}$"),
        Metric("F_max", r"$F_{\max}$"),
        Metric("F_adp", r"$F_{\mathrm{adp}}$"),
        Metric("MAE", "MAE", higher=False),
    )
}


@dataclass(frozen=True)
class Options:
    """What a user may choose about every table."""

    metrics: tuple[str, ...]
    digits: int = 3
    with_published: bool = False


@dataclass(frozen=True)
class Column:
    """One column; columns of one group stand under a common head."""

    label: str
    group: str = ""
    metric: Metric | None = None  # scores are set in their own way
    number: bool = False  # aligned right


@dataclass
class Cell:
    """What stands in one place.

    mark: "best", "second" or "".
    beside: a published number that stands next to ours.
    refs: keys of footnotes.
    """

    text: str
    mark: str = ""
    beside: str = ""
    refs: tuple[str, ...] = ()


@dataclass
class Section:
    """Lines under one heading; an empty title shows none."""

    title: str
    lines: list[list[Cell]] = field(default_factory=list)


@dataclass
class Table:
    """Style-neutral. `records` hold the same facts at full precision for machines."""

    kind: str
    title: str
    columns: list[Column]
    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    footnotes: dict[str, str] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)


class Footnotes:
    """Letters for where a method comes from, numbers for failures; equal texts share one."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}
        self._numbers: dict[str, str] = {}

    def letter(self, text: str) -> str:
        """Return the letter of a text."""
        return self._letters.setdefault(text, chr(ord("a") + len(self._letters)))

    def number(self, text: str) -> str:
        """Return the number of a text."""
        return self._numbers.setdefault(text, str(len(self._numbers) + 1))

    def texts(self) -> dict[str, str]:
        """Return key -> text, letters first."""
        return {key: text for part in (self._letters, self._numbers) for text, key in part.items()}


def decimal(value: float, digits: int, *, sign: bool = False) -> str:
    """As the paper prints numbers: .876, 1.000, -.012, +.119; halves are rounded up."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    text = f"{abs(rounded):f}"
    text = text[1:] if text.startswith("0.") else text
    if rounded == 0:
        return text
    return ("-" if rounded < 0 else "+" if sign else "") + text


def fixed(value: float, digits: int) -> str:
    """With a leading zero, for quantities that are no scores; halves are rounded up."""
    text = decimal(value, digits)
    sign, rest = ("-", text[1:]) if text.startswith("-") else ("", text)
    return sign + ("0" + rest if rest.startswith(".") else rest)


def plain(value: Any) -> str:
    """Return a property of a method in words."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def rank(cells: list[tuple[Cell, float]], metric: Metric, digits: int) -> None:
    """Mark the best and the second; values that print alike share a rank."""
    shown = [
        (cell, Decimal(decimal(value, digits))) for cell, value in cells if math.isfinite(value)
    ]
    levels = sorted({value for _, value in shown}, reverse=metric.higher)
    for cell, value in shown:
        if len(shown) > 1 and value in levels[:2]:
            cell.mark = ("best", "second")[levels.index(value)]
