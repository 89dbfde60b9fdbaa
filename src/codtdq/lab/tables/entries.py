"""Cells that differ in their seed only become one entry of a table."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from codtdq.lab.tables.catalogue import BIT_WIDTHS, OURS, TITLES, stress_title
from codtdq.lab.tables.results import Row


class Scope(NamedTuple):
    """What may stand in one table: scores on other images or on a stressed model may not."""

    model: str
    stress: str | None
    limit: int | None

    def __str__(self) -> str:
        stress = f", {stress_title(self.stress)}" if self.stress else ""
        limit = f", at most {self.limit} images per data set" if self.limit is not None else ""
        return f"{self.model}{stress}{limit}"


@dataclass(frozen=True, eq=False)
class Entry:
    """A method on a data set, over seeds."""

    method: str
    budget: str | None
    dataset: str
    rows: tuple[Row, ...]  # finished cells
    failures: tuple[Row, ...]

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the method says about itself; empty if every cell failed before it could."""
        return next((r["info"] for r in (*self.rows, *self.failures) if r.get("info")), {})

    @property
    def title(self) -> str:
        """The method's name for readers."""
        return str(self.info.get("title") or TITLES.get(self.method, self.method))

    @property
    def ours(self) -> bool:
        """Whether it belongs to the method itself: then it is never a baseline."""
        return self.method in OURS

    @property
    def ranked(self) -> bool:
        """Whether it is W4A4: FP32 and 8-bit references take no part in best and second."""
        return nominal_bits(self) == (4.0, 4.0)

    @property
    def baseline(self) -> bool:
        """Whether it is somebody else's W4A4 method with scores."""
        return self.ranked and not self.ours and bool(self.rows)

    def values(self, metric: str) -> list[float]:
        """Return a metric by seed; a seed without it counts as not a number."""
        found = [row["metrics"].get(metric) for row in self.rows]
        return [math.nan if value is None else float(value) for value in found]

    def mean(self, metric: str) -> float:
        """Return the mean over seeds; not a number if there is none."""
        values = self.values(metric)
        return statistics.fmean(values) if values else math.nan

    def std(self, metric: str) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        values = self.values(metric)
        if len(values) < 2:
            return None
        return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan

    def effective_bits(self, kind: str) -> float | None:
        """Return the measured bits per value with all side information, mean over seeds."""
        found = [(row["bits"] or {}).get(kind) for row in self.rows]
        bits = [float(value) for value in found if value is not None]
        return statistics.fmean(bits) if bits else None

    @property
    def calibration_images(self) -> int | None:
        """Images that calibration has seen; what the method declares if no cell tells."""
        for row in self.rows:
            images = (row.get("calibration") or {}).get("images")
            if images is not None:
                return int(images)
        declared = self.info.get("calibration_images")
        return None if declared is None else int(declared)


def nominal_bits(entry: Entry) -> tuple[float | None, float | None]:
    """(weight, activation) bits of the grid without side information; None where nothing tells.

    From the config of the cell, else from the leading number of the declared formula, which
    for "4 + 32/C" is 4.
    """
    if entry.method in BIT_WIDTHS:
        known = {"fp32": (32.0, 32.0), "w8a8": (8.0, 8.0), "w4a8": (4.0, 8.0), "w4a4": (4.0, 4.0)}
        return known[entry.method]
    config: dict[str, Any] = next((row["config"] for row in entry.rows if row.get("config")), {})
    return _bits("weight_bits", config, entry.info), _bits("act_bits", config, entry.info)


def _bits(field: str, config: dict[str, Any], info: dict[str, Any]) -> float | None:
    if field in config and isinstance(config[field], (int, float, type(None))):
        return 32.0 if config[field] is None else float(config[field])  # None keeps floats
    number = re.match(r"\s*(\d+(?:\.\d+)?)", str(info.get(field, "")))
    return float(number[1]) if number else None


def scopes_of(rows: Iterable[Row]) -> dict[Scope, list[Entry]]:
    """Entries by what may be compared; models in the order of the file, plain before stressed."""
    seeds: dict[tuple[Scope, str, str | None, str], list[Row]] = {}
    for row in rows:
        scope = Scope(row["model"], row["stress"], row["limit"])
        key = (scope, row["method"], row["budget"], row["dataset"])
        seeds.setdefault(key, []).append(row)
    scopes: dict[Scope, list[Entry]] = {}
    for (scope, method, budget, dataset), group in seeds.items():
        group.sort(key=lambda row: row["seed"])
        done = tuple(row for row in group if row["status"] == "ok")
        failed = tuple(row for row in group if row["status"] != "ok")
        scopes.setdefault(scope, []).append(Entry(method, budget, dataset, done, failed))
    models = list(dict.fromkeys(scope.model for scope in scopes))

    def place(scope: Scope) -> tuple[int, str, float]:
        limit = math.inf if scope.limit is None else scope.limit
        return models.index(scope.model), scope.stress or "", -limit

    return {scope: scopes[scope] for scope in sorted(scopes, key=place)}


def datasets_of(entries: Iterable[Entry]) -> list[str]:
    """Data sets: the paper's in its order, then others in the order of the file."""
    paper = ["CAMO", "CHAMELEON", "COD10K", "NC4K"]
    found = list(dict.fromkeys(entry.dataset for entry in entries))
    return sorted(found, key=lambda name: paper.index(name) if name in paper else len(paper))
