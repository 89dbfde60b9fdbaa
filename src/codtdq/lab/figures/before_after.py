r"""One method's token groups before and after C1 and C2: eta, rho_0, and how many exceed the bound.

"Before" is the base radius (largest or percentile magnitude), "after" the projected one, both
from the same quantizer on the same groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError
from codtdq.lab.diagnosis.layer_ranking import bounded_layer
from codtdq.lab.diagnosis.record import Diagnosis, GroupSample
from codtdq.lab.figures.style import (
    BOUNDARY,
    ELSEWHERE,
    LIMIT,
    legend_below,
    log_axis,
    new_figure,
    panel_title,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_METHODS = 3  # rows that can still be read
ON_THE_BOUND = 1 + 1e-5  # a projected group lies on its bound but for rounding
REGIONS = ((0, ELSEWHERE, "non-boundary"), (1, BOUNDARY, "boundary"))


@dataclass(frozen=True)
class Bounded:
    """The sampled groups of one method in one layer."""

    title: str
    layer: str
    groups: GroupSample


def bounded_samples(diagnosis: Diagnosis) -> list[Bounded]:
    """Methods with bounds on token groups, in the sampled layer where the bounds act most."""
    titles = {record.method: record.title for record in diagnosis.methods}
    found = [
        Bounded(titles[sample.method], sample.layer, sample.groups)
        for sample in diagnosis.samples
        if sample.groups is not None and len(sample.groups.eta_before)
    ]
    layer = bounded_layer(diagnosis.samples)
    return [one for one in found if one.layer == layer][:MOST_METHODS]


@styled
def before_and_after(samples: Sequence[Bounded]) -> Figure:
    """Draw a row per method: shares of groups above each value of eta (left) and rho_0 (right)."""
    if not samples:
        raise DataError("no method of this diagnosis bounds token groups; nothing to draw")
    figure = new_figure(height=0.7 + 2.3 * len(samples))
    grid = figure.subplots(len(samples), 2, squeeze=False)
    for row, one in enumerate(samples):
        found = one.groups
        parts = (
            (found.eta_before, found.eta_after, found.tau, r"$\eta$", r"$\tau$", "C1"),
            (found.rho0_before, found.rho0_after, found.zr, r"$\rho_0$", "zr", "C2"),
        )
        for column, (before, after, bound, label, symbol, constraint) in enumerate(parts):
            axes = grid[row][column]
            _curves(axes, found, before, after)
            if bound is not None:
                axes.axvline(bound, color=LIMIT, linewidth=0.9, linestyle=":")
            _window(axes, before, after, bound, log=column == 0)
            axes.set_ylim(0, 1.05)
            shares = "" if bound is None else _shares(found, before, after, bound, symbol)
            axes.set_xlabel(f"{label} of token groups{shares}", fontsize=7)
            if column == 0:
                axes.set_ylabel("share of groups above")
            panel_title(axes, "abcdef"[2 * row + column], f"{one.title}, {constraint} on {label}")
    legend_below(figure, grid[0][0])
    return figure


def share_over(
    values: NDArray[np.float32], labels: NDArray[np.int8], region: int, bound: float
) -> float:
    """Return the share of a region's groups beyond a bound; NaN without any."""
    chosen = values[labels == region]
    return float((chosen > bound * ON_THE_BOUND).mean()) if len(chosen) else float("nan")


def falls(one: Bounded) -> str:
    """Return the caption's numbers: what the bounds do to the groups that exceed them."""
    found, parts = one.groups, []
    for before, after, bound, words in (
        (found.eta_before, found.eta_after, found.tau, "η > τ"),
        (found.rho0_before, found.rho0_after, found.zr, "ρ₀ > zr"),
    ):
        if bound is not None:
            first, last = (100 * share_over(v, found.boundary, 0, bound) for v in (before, after))
            parts.append(f"{words} from {first:.2f} % to {last:.2f} %")
    return f"{one.title}: non-boundary groups with {', with '.join(parts)}."


def _shares(
    found: GroupSample,
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    bound: float,
    symbol: str,
) -> str:
    parts = []
    for region, _, words in REGIONS:
        shares = [share_over(values, found.boundary, region, bound) for values in (before, after)]
        if np.isfinite(shares).all():
            parts.append(f"{words} {100 * shares[0]:.1f} → {100 * shares[1]:.1f} %")
    return f"\nbeyond {symbol} = {bound:g}, before → after:\n{', '.join(parts)}"


def _curves(
    axes: Axes, found: GroupSample, before: NDArray[np.float32], after: NDArray[np.float32]
) -> None:
    for region, colour, words in REGIONS:
        chosen = found.boundary == region
        for values, style, when in ((before, "--", "before"), (after, "-", "after")):
            ordered = np.sort(values[chosen])
            above = 1 - np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
            axes.step(
                ordered,
                above,
                where="post",
                color=colour,
                linestyle=style,
                linewidth=1.3,
                label=f"{words}, {when}",
            )


def _window(
    axes: Axes,
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    bound: float | None,
    log: bool,
) -> None:
    values = np.concatenate([before, after])
    ends = [float(np.quantile(values, 0.997)), 0.0 if bound is None else bound * 1.5]
    if not log:
        axes.set_xlim(0, min(max(ends), 1.0))
        return
    starts = [float(np.quantile(values, 0.003)), np.inf if bound is None else bound * 0.6]
    axes.set_xlim(max(min(starts), 1e-9), max(ends))
    log_axis(axes.xaxis)
