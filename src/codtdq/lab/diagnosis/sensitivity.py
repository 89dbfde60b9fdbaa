"""Which operators a setting harms: one quantized and the rest float, and the reverse.

For an operator (or all of one role) i, with S the metric over the images:

    drop_i = S(all float) - S(only i quantized)
    gain_i = S(all but i quantized) - S(all quantized)
    harm_i = (drop_i + gain_i) / 2

`drop` is what i does as the first that is quantized, `gain` as the last; a network that has
collapsed shows little `gain`, one that masks single errors little `drop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from codtdq.data.dataset import Dataset
from codtdq.errors import ConfigError
from codtdq.evaluation import evaluate
from codtdq.lab.diagnosis.switchboard import Switchboard
from codtdq.planning import QuantConfig, Site
from codtdq.progress import Progress

UNITS = ("layer", "role")
Score = Callable[[nn.Module], float]


@dataclass(frozen=True)
class SensitivityRow:
    """One operator, or all operators of a role."""

    unit: str  # name of the operator, or the role
    role: str
    operators: tuple[str, ...]
    only: float  # metric with these quantized, the rest float
    without: float  # metric with these float, the rest quantized
    drop: float
    gain: float

    @property
    def harm(self) -> float:
        """Mean of drop and gain."""
        return (self.drop + self.gain) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready fields."""
        return {**asdict(self), "operators": list(self.operators), "harm": self.harm}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SensitivityRow:
        """Read what `to_dict` gave."""
        fields = {key: value for key, value in data.items() if key != "harm"}
        return cls(**{**fields, "operators": tuple(fields["operators"])})


@dataclass
class Sensitivity:
    """All rows, the most harmful first, and the two ends they lie between."""

    setting: str
    by: str
    metric: str
    float_score: float  # all operators float
    quantized_score: float  # all operators quantized
    rows: list[SensitivityRow] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {**asdict(self), "rows": [row.to_dict() for row in self.rows]}


def metric_scorer(dataset: Dataset, metric: str = "S") -> Score:
    """Return a function that gives a model's metric on a data set with masks."""
    return lambda model: float(evaluate(model, dataset).metrics[metric])


def measure_sensitivity(
    model: nn.Module,
    config: QuantConfig,
    score: Score,
    *,
    by: str = "layer",
    calibration: Any = None,
    metric: str = "S",
    done: Iterable[SensitivityRow] = (),
    on_row: Callable[[SensitivityRow], None] | None = None,
) -> Sensitivity:
    """Switch every operator (or role) of a model between float and quantized and score each state.

    model: the float model; it is not changed.
    score: higher is better; see `metric_scorer`.
    done: rows of an earlier run with the same arguments, which are taken over.
    on_row: called with every new row as soon as it exists, so that a caller can store it.
    """
    if by not in UNITS:
        raise ConfigError(f"by is {by!r}; accepted: {', '.join(UNITS)}")
    board = Switchboard(model, config, calibration)
    if not board.sites:
        raise ConfigError(f"config {config.name!r} quantizes no operator: nothing to be sensitive")
    units = _units(board.sites.values(), by)
    finished = {row.unit: row for row in done}
    with Progress(f"sensitivity by {by}", 2 + 2 * len(units)) as bar:
        with board.only(()) as plain:
            floating = score(plain)
        bar.step()
        with board.all_but(()) as full:
            quantized = score(full)
        bar.step()
        rows = []
        for unit, sites in units.items():
            row = finished.get(unit)
            if row is None:
                names = tuple(site.name for site in sites)
                with board.only(names) as hybrid:
                    only = score(hybrid)
                with board.all_but(names) as hybrid:
                    without = score(hybrid)
                row = SensitivityRow(
                    unit, sites[0].role, names, only, without, floating - only, without - quantized
                )
                if on_row is not None:
                    on_row(row)
            rows.append(row)
            bar.step(2, unit)
    rows.sort(key=lambda row: -row.harm)
    return Sensitivity(config.name, by, metric, floating, quantized, rows)


def _units(sites: Iterable[Site], by: str) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in sites:
        found.setdefault(site.name if by == "layer" else site.role, []).append(site)
    return found
