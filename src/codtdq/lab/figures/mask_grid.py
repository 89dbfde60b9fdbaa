"""Masks side by side: image and ground truth, then one column per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codtdq.lab.figures.style import FAINT, WIDTH, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MaskRow:
    """One image with the masks that methods gave it."""

    name: str
    image: NDArray[np.uint8]  # [H, W, 3]
    truth: NDArray[np.uint8]  # [H, W]
    masks: dict[str, NDArray[np.uint8]]  # title of a method -> [H, W]
    scores: dict[str, float] = field(default_factory=dict)  # title -> S


@styled
def mask_grid(rows: Sequence[MaskRow]) -> Figure:
    """A row per image; S under each mask where it is known."""
    titles = list(rows[0].masks)
    columns = 2 + len(titles)
    cell = WIDTH / columns
    figure = new_figure(height=len(rows) * (cell + 0.17) + 0.3)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    for line, row in zip(grid, rows):
        _show(line[0], row.image, row.name)
        _show(line[1], row.truth, "")
        for axes, title in zip(line[2:], titles):
            score = row.scores.get(title)
            _show(axes, row.masks[title], "" if score is None else f"S {score:.3f}")
    size = 7.5 if columns <= 7 else 6
    for axes, title in zip(grid[0], ["image", "ground truth", *titles]):
        axes.set_title(_broken(title, 16), fontsize=size)
    return figure


def _show(axes: Axes, pixels: NDArray[np.uint8], label: str) -> None:
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.set_xlabel(label, fontsize=6.5, labelpad=2)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.4)


def _broken(title: str, width: int) -> str:
    """A long title on two lines."""
    if len(title) <= width or " " not in title:
        return title
    at = min((i for i, c in enumerate(title) if c == " "), key=lambda i: abs(i - len(title) / 2))
    return title[:at] + "\n" + title[at + 1 :]
