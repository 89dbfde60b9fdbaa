"""The failure mechanism: a shared range, a coarse step, and boundary evidence in the zero bin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from codtdq.lab.diagnosis.record import Diagnosis
from codtdq.lab.figures.compared import Compared, naive_and_better, sampled_layers
from codtdq.lab.figures.style import (
    BOUNDARY,
    ELSEWHERE,
    INK,
    legend_below,
    new_figure,
    panel_title,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 44
PAIR = ("#CC79A7", "#009E73")  # the two methods; blue and orange are the two kinds of tokens


@styled
def failure_mechanism(diagnosis: Diagnosis, layer: str | None = None) -> Figure:
    """Magnitudes of one layer's input under two methods, and the numbers behind them.

    Filled: boundary activations that became zero. Dotted line: half the mean step, the edge of
    the zero bin. Bars: c_g, Delta and rho_0 of the layer and the S of the whole network.
    """
    name = layer or sampled_layers(diagnosis)[0]
    pair = naive_and_better(diagnosis, name)
    figure = new_figure(height=3.7)
    grid = figure.add_gridspec(4, 2, width_ratios=(2.1, 1))
    panels = [figure.add_subplot(grid[0:2, 0]), figure.add_subplot(grid[2:4, 0])]
    edges = _edges(pair)
    for letter, axes, one in zip("ab", panels, pair):
        _magnitudes(axes, one, edges)
        lost = one.zeroed_share()
        panel_title(axes, letter, f"{one.method.title}: {100 * lost:.1f} % of boundary zeroed")
    panels[0].sharex(panels[1])
    panels[0].tick_params(labelbottom=False)
    panels[1].set_xlabel(f"|x| of {name}")
    _numbers([figure.add_subplot(grid[row, 1]) for row in range(4)], diagnosis, pair)
    legend_below(figure, panels[0])
    return figure


def _edges(pair: tuple[Compared, Compared]) -> np.ndarray:
    sizes = np.concatenate([np.abs(one.sample.x[one.sample.x != 0]) for one in pair])
    low, high = np.quantile(sizes, 0.005), sizes.max()
    return np.geomspace(max(low, high * 1e-6), high, BINS + 1)


def _magnitudes(axes: Axes, one: Compared, edges: np.ndarray) -> None:
    """Densities on a logarithmic axis, so that weak and loud tokens are both seen."""
    size = np.clip(np.abs(one.sample.x), edges[0], edges[-1])
    evidence = one.sample.x != 0
    elsewhere = evidence & (one.sample.boundary == 0)
    boundary = evidence & one.boundary
    for chosen, colour, label, style in (
        (elsewhere, ELSEWHERE, "tokens elsewhere", "--"),
        (boundary, BOUNDARY, "boundary tokens", "-"),
    ):
        if chosen.any():
            share = np.histogram(size[chosen], edges)[0] / chosen.sum()
            axes.stairs(share, edges, color=colour, linestyle=style, label=label, linewidth=1.3)
    lost = np.histogram(size[boundary & one.zeroed], edges)[0] / max(int(boundary.sum()), 1)
    axes.stairs(lost, edges, fill=True, color=BOUNDARY, alpha=0.35, label="of these, became zero")
    if one.layer is not None and math.isfinite(one.layer.step.mean):
        axes.axvline(
            one.layer.step.mean / 2,
            color=INK,
            linestyle=":",
            linewidth=1.1,
            label=r"mean $\Delta / 2$",
        )
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylabel("share")


def _numbers(panels: list[Axes], diagnosis: Diagnosis, pair: tuple[Compared, Compared]) -> None:
    """Bars of c_g, Delta, rho_0 at the boundary, and S."""
    titles = [one.method.title for one in pair]
    layers = [one.layer for one in pair]
    rows: list[tuple[str, list[float]]] = [
        ("$c_g$", [math.nan if r is None else r.clip_factor for r in layers]),
        (r"mean $\Delta$", [math.nan if r is None else r.step.mean for r in layers]),
        (
            r"boundary $\rho_0$",
            [math.nan if r is None or r.boundary is None else r.boundary.rho0 for r in layers],
        ),
        ("S of the network", [one.method.metrics.get("S", math.nan) for one in pair]),
    ]
    floats = [m for m in diagnosis.methods if m.method == "fp32"]
    for letter, axes, (label, values) in zip("cdef", panels, rows):
        names, paint, shown = list(titles), list(PAIR), list(values)
        if letter == "f" and floats:
            names, paint = [floats[0].title, *names], [INK, *paint]
            shown = [floats[0].metrics.get("S", math.nan), *shown]
        places = range(len(shown))
        known = [v if math.isfinite(v) else 0.0 for v in shown]
        axes.barh(places, known, color=paint, height=0.66)
        for place, value in zip(places, shown):
            text = f"{value:.3g}" if math.isfinite(value) else "not defined"
            axes.annotate(
                text,
                (known[place], place),
                xytext=(3, 0),
                va="center",
                fontsize=6.5,
                textcoords="offset points",
            )
        axes.set_yticks(places, names, fontsize=6.5)
        axes.invert_yaxis()
        axes.set_xlim(0, (max(known) or 1) * 1.3)
        axes.set_xticks([])
        axes.grid(False)
        axes.spines["bottom"].set_visible(False)
        panel_title(axes, letter, label)
