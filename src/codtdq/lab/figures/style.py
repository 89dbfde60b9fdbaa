"""One look for all figures: fonts, colours that colour-blind readers can tell apart, no pyplot.

Figures are drawn on the Agg canvas and belong to nobody but the caller: no window, no global
list of open figures, nothing to close.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from codtdq.environment import install_hint
from codtdq.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

WIDTH = 7.0  # inches: two columns of a paper
DPI = 160
INK, FAINT, GRID = "#1b1f27", "#6b7280", "#d9dde3"
# Okabe and Ito's colours; line style and marker repeat the distinction in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
FLOAT = "fp32"
BOUNDARY, ELSEWHERE, LIMIT = "#D55E00", "#0072B2", "#1b1f27"

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "figure.facecolor": "white",
    "savefig.dpi": DPI,
    "svg.fonttype": "path",
    "svg.hashsalt": "codtdq",  # element names of an SVG do not change from run to run
}


def require_matplotlib() -> None:
    """Say in one line what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "figures need matplotlib, which is not installed; run "
            f"{install_hint('figures')}, or pass --no-figures"
        ) from error


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function under the style, and leave the caller's matplotlib settings alone."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        require_matplotlib()
        import matplotlib

        names = matplotlib.rcParamsDefault.keys() - {"backend"}  # to read it imports pyplot
        settings: Any = {name: matplotlib.rcParamsDefault[name] for name in names}
        settings.update(STYLE)
        with matplotlib.rc_context(settings):
            return function(*args, **kwargs)

    return wrapper


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure in inches, on its own Agg canvas, whose parts keep clear of each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Return a colour per method: FP32 is ink, the others follow in the order given.

    Give all methods of a diagnosis, also those that a figure leaves out: then one has one colour in
    all figures, and on the page.
    """
    others = [name for name in methods if name != FLOAT]
    found = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}
    return {name: found.get(name, INK) for name in methods}


def positions(methods: Sequence[str]) -> dict[str, int]:
    """Return the place of every method but FP32, for its line style: the same in all figures."""
    return {name: i for i, name in enumerate(name for name in methods if name != FLOAT)}


def line_style(index: int) -> dict[str, Any]:
    """Return the dashes and marker of the index-th line."""
    return {
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 2.6,
    }


def panel_title(axes: Axes, letter: str, text: str) -> None:
    """`(a) text`, left of the panel."""
    axes.set_title(f"({letter}) {text}", loc="left")


def log_axis(axis: Axis) -> None:
    """A logarithmic scale whose labels are plain numbers, also where it spans no whole decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    is_x = axis is axis.axes.xaxis
    (axis.axes.set_xscale if is_x else axis.axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 9.0
    subs = (1.0,) if decades > 2 else (1.0, 3.0) if decades > 1 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """One legend for the figure, under the data."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))
