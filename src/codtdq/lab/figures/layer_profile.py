"""Every diagnostic over the layers of the network, a line per method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError
from codtdq.lab.diagnosis.record import LayerRecord, MethodRecord
from codtdq.lab.figures.style import (
    colours,
    legend_below,
    line_style,
    log_axis,
    new_figure,
    panel_title,
    positions,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = 7
SQNR_TOP = 60  # dB: 8-bit and exact layers lie beyond and would flatten the rest
Reading = Callable[[LayerRecord], float]


def _at_boundary(layer: LayerRecord) -> float:
    return math.nan if layer.boundary is None else layer.boundary.rho0


PANELS: tuple[tuple[str, str, Reading], ...] = (
    ("clip radius over std, $c_g$", "log", lambda layer: layer.clip_factor),
    (r"step, mean $\Delta$", "log", lambda layer: layer.step.mean),
    (r"step to dispersion, mean $\eta$", "log", lambda layer: layer.eta.mean),
    (r"zero-bin mass, mean $\rho_0$", "linear", lambda layer: layer.rho0.mean),
    (r"$\rho_0$ of boundary tokens", "linear", _at_boundary),
    ("clip rate", "linear", lambda layer: layer.clip.mean),
    ("range disparity, D(X)", "log", lambda layer: layer.disparity),
    (f"SQNR (dB), up to {SQNR_TOP}", "linear", lambda layer: min(layer.sqnr_db, SQNR_TOP)),
)


@styled
def layer_profile(methods: Sequence[MethodRecord]) -> Figure:
    """Small multiples over the order of the forward pass; unknown values leave gaps.

    A constant input has no c_g (its deviation is rounding noise). SQNR is cut at `SQNR_TOP`.

    Dots are layers, lines their running median over `WINDOW` layers: neighbouring layers differ
    too much for a line through all of them to be read.
    """
    shown = [m for m in methods if m.layers and m.method != "fp32"]
    if not shown:
        raise DataError("no method of this diagnosis quantizes a layer; nothing to draw")
    names = [m.method for m in methods]
    paint, places = colours(names), positions(names)
    figure = new_figure(height=6.6)
    grid = figure.subplots(4, 2, sharex=True)
    for index, ((label, scale, reading), axes) in enumerate(zip(PANELS, grid.flat)):
        for method in shown:
            layers = sorted(method.layers, key=lambda layer: layer.order)
            order = [layer.order for layer in layers]
            values = [_drawable(reading(layer), scale) for layer in layers]
            colour, style = paint[method.method], line_style(places[method.method])
            axes.plot(
                order,
                values,
                linestyle="",
                marker=style["marker"],
                markersize=1.5,
                color=colour,
                alpha=0.22,
                markeredgewidth=0,
            )
            axes.plot(
                order,
                running_median(values),
                color=colour,
                linewidth=1.2,
                linestyle=style["linestyle"],
            )
            if index == 0:  # the legend shows both, the line and its dots
                axes.plot([], [], color=colour, label=method.title, **{**style, "markersize": 4})
        if scale == "log" and _any_value(axes):
            log_axis(axes.yaxis)
        if not _any_value(axes):
            axes.text(
                0.5,
                0.5,
                "not measured by these methods",
                transform=axes.transAxes,
                ha="center",
                va="center",
            )
            axes.set_yticks([])
        panel_title(axes, "abcdefgh"[index], label)
    for axes in grid[-1]:
        axes.set_xlabel("layer, in the order of the forward pass")
    legend_below(figure, grid.flat[0])
    return figure


def running_median(values: Sequence[float]) -> NDArray[np.floating]:
    """Median of the known values within half a window on both sides; NaN where there is none."""
    half = WINDOW // 2 if len(values) > 3 * WINDOW else 0
    near = [np.asarray(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    known = [part[np.isfinite(part)] for part in near]
    return np.array([np.median(part) if len(part) else math.nan for part in known])


def _drawable(value: float, scale: str) -> float:
    return value if math.isfinite(value) and (scale != "log" or value > 0) else math.nan


def _any_value(axes: object) -> bool:
    lines = axes.get_lines()  # type: ignore[attr-defined]
    return any(math.isfinite(y) for line in lines for y in line.get_ydata())
