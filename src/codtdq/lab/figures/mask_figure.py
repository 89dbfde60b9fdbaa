"""The grid of masks as a figure, pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from codtdq.lab.figures.style import DPI, new_figure, styled
from codtdq.lab.mask_grid import MaskRow, mask_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def mask_figure(rows: Sequence[MaskRow]) -> Figure:
    """Draw `mask_grid` of the rows on a figure of its size."""
    pixels = np.asarray(mask_grid(rows))
    height, width = pixels.shape[:2]
    figure = new_figure(height=height / DPI, width=width / DPI)
    figure.set_layout_engine("none")  # one picture fills it
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, interpolation="none", aspect="auto")
    axes.set_axis_off()
    return figure
