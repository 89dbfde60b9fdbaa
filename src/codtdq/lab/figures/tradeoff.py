"""Speed against loss: every candidate of `bench latency` as a point as large as its file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from codtdq.errors import DataError
from codtdq.lab.figures.style import FAINT, MARKERS, colours, log_axis, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2  # panels beside each other
SMALLEST, LARGEST, KEY_AREA = 18.0, 260.0, 28.0  # areas of points, in square points
MB = 1e6


class Point(NamedTuple):
    """One candidate."""

    name: str
    speed: float  # against FP32 in the same run
    value: float  # S, or a distance
    megabytes: float


@styled
def tradeoff(result: dict[str, Any]) -> Figure:
    """Draw a panel per batch size and number of threads; the line joins what nothing else beats.

    result: of `run_latency`. The vertical axis is S where candidates were scored, else the
    relative distance of their outputs from FP32.
    """
    rows = [row for row in result["rows"] if "skipped" not in row]
    scored = any("S" in row.get("accuracy", {}) for row in rows)
    cells = list(dict.fromkeys((row["batch"], row["threads"]) for row in rows))
    panels = [[p for row in rows if (p := _point(row, cell, scored))] for cell in cells]
    if not any(panels):
        raise DataError("no candidate has both a speed and a loss; nothing to draw")
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    columns = min(COLUMNS, len(cells))
    lines = math.ceil(len(cells) / columns)
    figure = new_figure(height=0.6 + 3.3 * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    largest = max(point.megabytes for points in panels for point in points)
    for axes, cell, points in zip(grid.flat, cells, panels):
        _draw_panel(axes, points, names, largest, higher=scored)
        axes.set_title(_title(result, *cell), loc="left")
        axes.set_xlabel("speed-up over torch FP32 (higher is better)")
        label = "S (higher is better)" if scored else "distance of outputs from FP32 (lower)"
        axes.set_ylabel(label)
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    _legend(figure, panels, names)
    return figure


def front(points: Sequence[Point], *, higher: bool) -> list[Point]:
    """Return the points that no other one beats in both speed and value, slowest first."""
    sign = 1.0 if higher else -1.0
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.speed, -sign * p.value)):
        if not kept or sign * point.value > sign * kept[-1].value:
            kept.append(point)
    return kept[::-1]


def _point(row: dict[str, Any], cell: tuple[int, int], scored: bool) -> Point | None:
    if (row["batch"], row["threads"]) != cell:
        return None
    value = row.get("accuracy", {}).get("S") if scored else row.get("difference", 0.0)
    if value is None:
        return None
    size = (row["weight_bytes"] or 0) / MB
    return Point(row["candidate"], row["speedup"]["median"], value, size)


def _draw_panel(
    axes: Axes, points: Sequence[Point], names: Sequence[str], largest: float, *, higher: bool
) -> None:
    best = front(points, higher=higher)
    axes.plot(
        [p.speed for p in best], [p.value for p in best], color=FAINT, linewidth=0.9, zorder=1
    )
    colour = colours(names)
    palette = len(MARKERS)  # a colour comes again with the next marker
    for point in sorted(points, key=lambda p: -p.megabytes):  # small ones on top
        area = SMALLEST + (LARGEST - SMALLEST) * point.megabytes / max(largest, 1e-9)
        axes.scatter(
            [point.speed],
            [point.value],
            s=area,
            color=colour[point.name],
            marker=MARKERS[names.index(point.name) // palette % palette],
            edgecolor="white",
            linewidth=0.6,
            alpha=0.85,
            zorder=2,
            label=f"{point.name}, {point.megabytes:.3g} MB",
        )
    log_axis(axes.xaxis)
    axes.margins(x=0.08, y=0.1)


def _legend(figure: Figure, panels: Sequence[Sequence[Point]], names: Sequence[str]) -> None:
    """List all candidates with their megabytes beside the panels, in the order of the rows."""
    found = {}
    for axes, points in zip(figure.axes, panels):
        if points:
            handles, labels = axes.get_legend_handles_labels()
            found.update({label: handle for label, handle in zip(labels, handles)})
    order = sorted(found, key=lambda label: names.index(label.rpartition(", ")[0]))
    legend = figure.legend([found[label] for label in order], order, loc="outside right center")
    for handle in legend.legend_handles:
        handle.set_sizes([KEY_AREA])  # type: ignore[union-attr]


def _title(result: dict[str, Any], batch: int, threads: int) -> str:
    held = f", held to {result['held']['set']}" if "held" in result else ""
    count = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{result['model']}, batch {batch}, {count}{held}"
