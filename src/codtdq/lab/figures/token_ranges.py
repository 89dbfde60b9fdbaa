"""Range disparity over tokens, and what is left of boundary magnitudes after quantization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codtdq.lab.diagnosis.record import Diagnosis
from codtdq.lab.figures.compared import Compared, naive_and_better, sampled_layers
from codtdq.lab.figures.style import (
    BOUNDARY,
    ELSEWHERE,
    FAINT,
    INK,
    log_axis,
    new_figure,
    panel_title,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 36
LEAST = 1e-3  # smallest share that is drawn
LABELS = (
    (-1, FAINT, "x", "neither"),
    (0, ELSEWHERE, "o", "tokens elsewhere"),
    (1, BOUNDARY, "^", "boundary tokens"),
)


@styled
def token_ranges(diagnosis: Diagnosis, layer: str | None = None) -> Figure:
    """(a-c) largest magnitude of each token, float and quantized; (d, e) boundary magnitudes.

    Tokens are sorted by their float range; a token of which nothing is left stands on the floor.
    """
    name = layer or sampled_layers(diagnosis)[0]
    naive, better = naive_and_better(diagnosis, name)
    figure = new_figure(height=4.5)
    grid = figure.add_gridspec(2, 6, height_ratios=(1.15, 1))
    tops = [figure.add_subplot(grid[0, 2 * i : 2 * i + 2]) for i in range(3)]
    floor = min(_floor(naive), _floor(better))
    loudest = max(float(np.abs(one.sample.x).max()) for one in (naive, better))
    for axes, letter, one, quantized in zip(
        tops, "abc", (naive, naive, better), (False, True, True)
    ):
        erased = _ranges(axes, one, quantized, floor)
        note = f"boundary erased: {100 * erased:.0f} %"
        title = f"{one.method.title}\n{note}" if quantized else "float values\n"
        panel_title(axes, letter, title)
        axes.set_ylim(floor * 0.75, loudest * 1.4)
        log_axis(axes.yaxis)
    for axes in tops[1:]:
        axes.tick_params(labelleft=False)
    tops[0].set_ylabel("largest |x| of a token")
    tops[1].set_xlabel(f"tokens of {name}, sorted by float range")
    bottoms = [figure.add_subplot(grid[1, 0:3]), figure.add_subplot(grid[1, 3:6])]
    for axes, one in zip(bottoms, (naive, better)):
        _magnitudes(axes, one)
    for axes, letter, one in zip(bottoms, "de", (naive, better)):
        axes.set_ylim(LEAST, 1.3)
        log_axis(axes.yaxis)
        axes.set_xlabel("|x| of boundary tokens")
        share = 100 * one.zeroed_share()
        panel_title(axes, letter, f"{one.method.title}: {share:.1f} % zeroed")
    bottoms[0].set_ylabel("share of activations")
    _legend(figure, tops[1], bottoms[0])
    return figure


def token_maxima(
    values: NDArray[np.float32], token: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the tokens that occur, ascending, and the largest |value| of each."""
    names, place = np.unique(token, return_inverse=True)
    largest = np.zeros(len(names))
    np.maximum.at(largest, place, np.abs(values).astype(np.float64))
    return names, largest


def _floor(one: Compared) -> float:
    """Where tokens without anything left are drawn: below all float ranges."""
    _, largest = token_maxima(one.sample.x, one.sample.token)
    return float(largest[largest > 0].min()) / 2


def _ranges(axes: Axes, one: Compared, quantized: bool, floor: float) -> float:
    """Draw the panel; returns the share of boundary tokens that quantization erased."""
    names, before = token_maxima(one.sample.x, one.sample.token)
    _, after = token_maxima(one.sample.x_hat, one.sample.token)
    label = np.zeros(len(names), dtype=int)
    label[np.searchsorted(names, one.sample.token)] = one.sample.boundary
    order = np.argsort(before, kind="stable")
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    if quantized:
        axes.plot(
            np.arange(len(order)), before[order], color=FAINT, linewidth=0.9, label="float range"
        )
    shown = after if quantized else before
    for code, colour, marker, text in LABELS:
        chosen = (label == code) & (before > 0)
        axes.plot(
            rank[chosen],
            np.maximum(shown[chosen], floor),
            linestyle="",
            marker=marker,
            markersize=2.4 + code * 0.6,
            color=colour,
            alpha=0.75,
            label=text,
            zorder=3 + code,
            markeredgewidth=0.6 if code < 0 else 0,
        )
    if quantized:
        axes.axhline(floor, color=INK, linewidth=0.6, linestyle=":", label="erased: all zero")
    boundary = (label == 1) & (before > 0)
    return float((after[boundary] == 0).mean()) if boundary.any() else float("nan")


def _magnitudes(axes: Axes, one: Compared) -> None:
    """Before as an outline, after as bars, what became zero as a bar of its own."""
    chosen = one.boundary & (one.sample.x != 0)
    before, after = np.abs(one.sample.x[chosen]), np.abs(one.sample.x_hat[chosen])
    limit = float(np.quantile(before, 0.99)) or 1.0
    edges = np.linspace(0, limit, BINS + 1)
    width = edges[1]
    share = np.histogram(np.minimum(before, limit), edges)[0] / len(before)
    kept = np.histogram(np.minimum(after[after > 0], limit), edges)[0] / len(before)
    zero = float((after == 0).mean())
    axes.stairs(
        np.maximum(kept, LEAST),
        edges,
        fill=True,
        baseline=LEAST,
        color=ELSEWHERE,
        alpha=0.55,
        label="after, not zero",
    )
    axes.bar(-2.2 * width, zero, bottom=LEAST, width=2 * width, color=BOUNDARY, label="after: zero")
    axes.stairs(
        np.maximum(share, LEAST), edges, baseline=None, color=INK, linewidth=1.1, label="before"
    )
    axes.annotate(
        "0",
        (-2.2 * width, LEAST),
        xytext=(0, -3),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
    )
    axes.set_xlim(-4 * width, limit)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 < tick < limit])


def _legend(figure: Figure, *panels: Axes) -> None:
    handles, labels = [], []
    for axes in panels:
        found = axes.get_legend_handles_labels()
        handles += found[0]
        labels += found[1]
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
