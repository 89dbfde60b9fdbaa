"""3-D histograms of a layer's weights: value, output channel, count; a panel per method (S4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codtdq.lab.figures.style import FAINT, WIDTH, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS, BANDS = 48, 12


@styled
def weight_histograms(layer: str, weights: Mapping[str, NDArray[np.floating]]) -> Figure:
    """Draw one ridge per band of output channels; panels share the axis of values, not of counts.

    weights: title of a method -> the layer's weight as used in the product, [O, ...]. Weights on
    a 4-bit grid show as separate spikes; a range that an outlier stretched shows as few of them.
    """
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    columns = 2 if len(weights) in (2, 4) else min(3, len(weights))
    rows = math.ceil(len(weights) / columns)
    height = WIDTH / columns * (0.78 if columns < 3 else 0.92)
    figure = new_figure(height=rows * height + 0.3)
    figure.set_layout_engine("none")  # 3-D axes report no extent: their place is set by hand
    limit = max(float(np.abs(w).max()) for w in weights.values()) or 1.0
    edges = np.linspace(-limit, limit, BINS + 1)
    whole = rows * height + 0.3
    for index, (title, weight) in enumerate(weights.items()):
        down, across = divmod(index, columns)
        left = across / columns - 0.022  # the labels of counts stand on the right
        place = (left, (rows - 1 - down) * height / whole, 1 / columns, height / whole)
        axes: Any = figure.add_axes(place, projection="3d")
        starts, heights = banded_counts(weight, edges)
        outlines = [_outline(edges, row) for row in heights]
        ridges = PolyCollection(
            outlines,
            facecolors=colormaps["viridis"](np.linspace(0.08, 0.88, len(starts))),
            linewidths=0,
            alpha=0.88,
        )
        axes.add_collection3d(ridges, zs=starts, zdir="y")
        axes.set(xlim=(-limit, limit), ylim=(0, len(weight)), zlim=(0, int(heights.max()) or 1))
        axes.set_xlabel("weight value", labelpad=-3, fontsize=7)
        axes.set_ylabel("output channel", labelpad=-5, fontsize=7)
        axes.set_zlabel("count", labelpad=-4, fontsize=7)
        axes.tick_params(pad=-2, labelsize=6, colors=FAINT)
        for axis in "xyz":
            axes.locator_params(axis=axis, nbins=4)
        axes.view_init(elev=28, azim=-58)
        axes.set_box_aspect((1.25, 1, 0.75), zoom=0.92 if columns < 3 else 0.84)
        figure.text(
            (across + 0.5) / columns,
            1 - (0.3 + down * height) / whole,
            title,
            ha="center",
            va="top",
            fontsize=8.5,
        )
    figure.text(0.5, 1 - 0.06 / whole, f"Weights of {layer}", ha="center", va="top", fontsize=9)
    return figure


def banded_counts(
    weight: NDArray[np.floating], edges: NDArray[np.floating]
) -> tuple[list[int], NDArray[np.int64]]:
    """Return the first output channel of each band, and counts [bands, bins] of its weights."""
    rows = np.asarray(weight, dtype=np.float64).reshape(len(weight), -1)
    bands = np.array_split(np.arange(len(rows)), min(BANDS, len(rows)))
    counts = np.stack([np.histogram(rows[band], bins=edges)[0] for band in bands])
    return [int(band[0]) for band in bands], counts


def _outline(edges: NDArray[np.floating], heights: NDArray[np.int64]) -> NDArray[np.floating]:
    """Return the corners of a histogram, [2 bins + 2, 2]."""
    across = np.repeat(edges, 2)
    up = np.concatenate([[0], np.repeat(heights, 2), [0]])
    return np.column_stack([across, up])
