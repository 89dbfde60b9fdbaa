"""Curves of scored methods on one data set: precision-recall, F and E by threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from codtdq.lab.figures.style import DASHES, colours, legend_below, new_figure, panel_title, styled
from codtdq.lab.score.run import Scored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 2.9


@styled
def curves_figure(scored: Scored, dataset: str) -> Figure:
    """Draw three panels with a line per method."""
    figure = new_figure(HEIGHT)
    left, middle, right = figure.subplots(1, 3)
    methods = [method for method in scored.methods if (method, dataset) in scored.cells]
    colour = colours(methods)
    thresholds = np.arange(256)
    for index, method in enumerate(methods):
        curves = scored.cells[method, dataset].curves()
        line = {"color": colour[method], "linestyle": DASHES[index % len(DASHES)], "label": method}
        left.plot(curves.recall, curves.precision, **line)
        middle.plot(thresholds, curves.f, **line)
        right.plot(thresholds, curves.e, **line)
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
    for axes, name in ((middle, "F-measure"), (right, "E-measure")):
        axes.set(xlabel="threshold", ylabel=name, xlim=(0, 255), ylim=(0, 1))
    panel_title(left, "a", f"{dataset}: precision and recall")
    panel_title(middle, "b", "F-measure")
    panel_title(right, "c", "E-measure")
    legend_below(figure, left)
    return figure
