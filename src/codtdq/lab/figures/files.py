"""Figures as PNG and SVG files: the same figure is the same bytes, whenever it is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from codtdq.errors import ConfigError
from codtdq.io import write_bytes
from codtdq.lab.figures.style import DPI, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


@styled
def figure_bytes(figure: Figure, form: str, dpi: int = DPI) -> bytes:
    """Return a figure as PNG or SVG; no date and no version of a program in it."""
    if form not in FORMATS:
        raise ConfigError(f"figure format {form!r}; accepted: {', '.join(FORMATS)}")
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # lay out once: a second time would move things by a hair
        figure.set_layout_engine("none")
    stream = io.BytesIO()
    figure.savefig(stream, format=form, dpi=dpi, metadata=metadata)
    return stream.getvalue()


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format of the suffix, atomically."""
    path = Path(path)
    return write_bytes(path, figure_bytes(figure, path.suffix.removeprefix(".")))
