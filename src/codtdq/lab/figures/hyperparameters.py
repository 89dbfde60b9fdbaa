"""How the score depends on group size g, step bound tau and zero-bin bound zr (S3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from codtdq.errors import DataError
from codtdq.lab.figures.style import (
    COLOURS,
    FAINT,
    INK,
    legend_below,
    line_style,
    new_figure,
    panel_title,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Setting(NamedTuple):
    """A point of the grid and its score; None is a bound that is switched off."""

    g: float
    tau: float | None
    zr: float | None
    score: float


AXES = (("g", "group size g (channels)"), ("tau", "step bound τ"), ("zr", "zero-bin bound zr"))


@styled
def hyperparameter_sensitivity(
    rows: Sequence[tuple[float, float | None, float | None, float]],
    *,
    default: tuple[float, float | None, float | None] = (32, 1.0, 0.2),
    metric: str = "S",
    reference: float | None = None,
) -> Figure:
    """Draw one panel per hyper-parameter: the default line in colour, every other setting as a dot.

    rows: (g, tau, zr, score), None for no bound. The line holds the other two at their default;
    where the default was not measured, at those of the best row. reference: the score of FP32.
    """
    points = [Setting(*row) for row in rows]
    if not points:
        raise DataError("no settings to draw; expected rows of (g, tau, zr, score)")
    centre = _centre(points, Setting(*default, score=0.0))
    figure = new_figure(height=2.45)
    panels = figure.subplots(1, 3, sharey=True)
    for index, ((name, label), axes) in enumerate(zip(AXES, panels)):
        others = [other for other, _ in AXES if other != name]
        ticks = sorted({getattr(p, name) for p in points}, key=_last_if_off)
        place = {value: i for i, value in enumerate(ticks)}  # even spacing: values are log-like
        axes.plot(
            [place[getattr(p, name)] for p in points],
            [p.score for p in points],
            linestyle="",
            marker="o",
            markersize=3,
            color=FAINT,
            alpha=0.45,
            label="all other settings",
        )
        line = sorted(
            (p for p in points if all(getattr(p, o) == getattr(centre, o) for o in others)),
            key=lambda p: place[getattr(p, name)],
        )
        held = "others held at g = {}, τ = {}, zr = {}".format(*map(_shown, centre[:3]))
        style: dict[str, Any] = {**line_style(0), "markersize": 4.5}
        axes.plot(
            [place[getattr(p, name)] for p in line],
            [p.score for p in line],
            color=COLOURS[0],
            label=held,
            **style,
        )
        if reference is not None:
            axes.axhline(reference, color=INK, linestyle=":", linewidth=1, label="FP32")
        axes.set_xticks(range(len(ticks)), [_shown(t) for t in ticks])
        axes.set_xlim(-0.35, len(ticks) - 0.65)
        axes.set_xlabel(label)
        panel_title(axes, "abc"[index], name if name != "tau" else "τ")
    panels[0].set_ylabel(f"{metric} (higher is better)" if metric != "MAE" else "MAE (lower)")
    legend_below(figure, panels[0])
    return figure


def _centre(points: Sequence[Setting], default: Setting) -> Setting:
    """Return the measured default, else the best row."""
    same = [p for p in points if p[:3] == default[:3]]
    return same[0] if same else max(points, key=lambda p: p.score)


def _last_if_off(value: float | None) -> float:
    return math.inf if value is None else value


def _shown(value: float | None) -> str:
    return "off" if value is None else f"{value:g}"
