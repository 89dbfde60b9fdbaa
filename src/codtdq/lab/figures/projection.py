r"""Step-to-dispersion and zero-bin mass of token groups, before and after the bounds C1 and C2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError
from codtdq.lab.diagnosis.record import Histogram, MethodRecord
from codtdq.lab.figures.style import (
    DASHES,
    LIMIT,
    colours,
    legend_below,
    log_axis,
    new_figure,
    panel_title,
    positions,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def projection(methods: Sequence[MethodRecord], *, tau: float = 1.0, zr: float = 0.2) -> Figure:
    """Distributions over the token groups of all layers, and the share beyond each bound.

    A method without bounds shows the state before; with C1, C2 or both, after. The curves say how
    many groups lie above each value: shares of 32 channels leave gaps that bars would show as a
    comb.
    """
    shown = [m for m in methods if m.layers and m.method != "fp32"]
    if not shown:
        raise DataError("no method of this diagnosis quantizes a layer; nothing to draw")
    names = [m.method for m in methods]
    paint, places = colours(names), positions(names)
    figure = new_figure(height=4.4)
    grid = figure.subplots(2, 2, height_ratios=(1.25, 1), width_ratios=(1, 1))
    parts = (
        ("group_eta", tau, r"step to dispersion $\eta$", r"$\tau$", "C1"),
        ("group_rho0", zr, r"zero-bin mass $\rho_0$", "zr", "C2"),
    )
    for column, (name, bound, label, symbol, constraint) in enumerate(parts):
        top, bottom = grid[0][column], grid[1][column]
        pools = [_pooled([getattr(layer, name) for layer in m.layers]) for m in shown]
        beyond = []
        for number, method in enumerate(shown):
            pooled = pools[number]
            beyond.append(None if pooled is None else share_beyond(*pooled, bound))
            style: dict[str, Any] = {
                "color": paint[method.method],
                "linestyle": DASHES[places[method.method] % len(DASHES)],
                "label": method.title,
            }
            if pooled is None:
                top.plot([], [], **style)  # it keeps its place in the legend
                continue
            edges, counts = pooled
            left = np.concatenate([[1.0], 1 - np.cumsum(counts) / counts.sum()])
            top.plot(edges, left, linewidth=1.3, **style)
        top.axvline(bound, color=LIMIT, linewidth=0.9, linestyle=":")
        top.annotate(
            f"{symbol} = {bound:g}",
            (bound, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            va="top",
            fontsize=7,
        )
        _window(top, pools, bound, log=name == "group_eta")
        top.set(xlabel=label, ylim=(0, 1.02), ylabel="share of groups above" if column == 0 else "")
        panel_title(top, "ab"[column], f"{label}, bounded by {constraint}")
        _bars(bottom, shown, beyond, paint)
        bottom.set_xlabel(f"share of token groups beyond {symbol} = {bound:g}")
        panel_title(bottom, "cd"[column], f"groups beyond the bound of {constraint}")
    grid[1][1].set_yticklabels([])
    legend_below(figure, grid[0][0])
    return figure


def share_beyond(edges: NDArray[np.floating], counts: NDArray[np.integer], bound: float) -> float:
    """Return the share of counts in bins above the one that holds the bound.

    A projected group lies on its bound, in that bin, and does not count as beyond.
    """
    above = edges[:-1] > bound * (1 + 1e-9)
    return float(counts[above].sum() / counts.sum())


def _pooled(
    histograms: Sequence[Histogram],
) -> tuple[NDArray[np.floating], NDArray[np.integer]] | None:
    """Counts of all layers; the edges are the same by construction. None without any count."""
    counts = np.sum([h.counts for h in histograms], axis=0)
    if not counts.sum():
        return None
    return np.asarray(histograms[0].edges, dtype=float), counts


def _window(axes: Axes, pools: Sequence[Any], bound: float, log: bool) -> None:
    """Cut off the ends that hold under half a hundredth of every method's groups."""
    starts, ends = [bound * 0.7], [bound * 1.4]
    for edges, counts in filter(None, pools):
        grown = np.cumsum(counts) / counts.sum()
        starts.append(edges[int(np.searchsorted(grown, 0.005))])
        ends.append(edges[min(int(np.searchsorted(grown, 0.995)) + 1, len(edges) - 1)])
    axes.set_xlim(max(min(starts), 1e-9) if log else 0, max(ends))
    if log:
        log_axis(axes.xaxis)


def _bars(
    axes: Axes, methods: Sequence[MethodRecord], shares: Sequence[float | None], paint: Any
) -> None:
    places = range(len(methods))
    axes.barh(
        places, [s or 0 for s in shares], color=[paint[m.method] for m in methods], height=0.62
    )
    for place, share in zip(places, shares):
        text = "not defined" if share is None else f"{100 * share:.1f} %"
        axes.annotate(
            text,
            (share or 0, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(places, [m.title for m in methods])
    axes.set_xlim(0, max([s or 0 for s in shares] + [0.05]) * 1.22)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
