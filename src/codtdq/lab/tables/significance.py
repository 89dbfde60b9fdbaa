"""Tables of paired statistics: per data set and pooled, against the best baseline and FP32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from codtdq.errors import DataError
from codtdq.lab.tables.catalogue import FLOAT, order_of
from codtdq.lab.tables.cells import method_cell
from codtdq.lab.tables.entries import Entry, Scope, datasets_of
from codtdq.lab.tables.gain import strongest
from codtdq.lab.tables.layout import (
    METRICS,
    MISSING,
    Cell,
    Column,
    Footnotes,
    Metric,
    Options,
    Section,
    Table,
    decimal,
)
from codtdq.lab.tables.provenance import statement
from codtdq.lab.tables.scores import Line
from codtdq.lab.tables.statistics import LEVEL, RESAMPLES, Comparison, compare, image_means

_Scores = dict[str, dict[str, float]]
POOLED = "all data sets"


def stats_table(
    scope: Scope, entries: Sequence[Entry], metric_key: str, options: Options
) -> Table | None:
    """One section per data set, and one over all of them if there are several."""
    builder = _Builder(
        scope, entries, METRICS.get(metric_key, Metric(metric_key, metric_key)), options
    )
    datasets = datasets_of(entries)
    for dataset in datasets:
        builder.add(dataset, [dataset])
    # camosynth is its own splits together: an image counts once.
    parts = [d for d in datasets if not any(o.startswith(f"{d}/") for o in datasets)]
    if len(parts) > 1:
        builder.add(f"{POOLED} ({len(parts)})", parts)
    return builder.table() if builder.sections else None


class _Builder:
    def __init__(
        self, scope: Scope, entries: Sequence[Entry], metric: Metric, options: Options
    ) -> None:
        self.scope, self.metric, self.options = scope, metric, options
        self.lines: dict[Line, dict[str, Entry]] = {}
        for entry in sorted(entries, key=lambda e: (order_of(e.method), e.budget or "")):
            if entry.rows:
                self.lines.setdefault((entry.method, entry.budget), {})[entry.dataset] = entry
        self.footnotes = Footnotes()
        self.sections: list[Section] = []
        self.records: list[dict[str, Any]] = []
        self.left_out: dict[str, str] = {}
        self.used: list[Entry] = []

    def add(self, title: str, datasets: list[str]) -> None:
        """Compare on the images of some data sets, if there is a baseline with scores on all."""
        scores: _Scores = {}
        lines: dict[str, Line] = {}
        for line, here in self.lines.items():
            label = self._label(line)
            missing = [name for name in datasets if name not in here]
            if missing:
                self.left_out[label] = f"no result on {', '.join(missing)}"
                continue
            per_image = self._images(here, datasets)
            if all(math.isfinite(value) for value in per_image.values()):
                scores[label], lines[label] = per_image, line
            else:
                self.left_out[label] = "not a number on some image"
        baseline = self._baseline(lines, datasets)
        if baseline is None or len(scores) < 2:
            return
        against = self._compare(scores, baseline, title)
        floats = self._compare(scores, FLOAT, title) if FLOAT in scores else {}
        section = Section(f"{title}: difference to {self._first(lines[baseline]).title}")
        for label in scores:
            found = against.get(label)  # None: the baseline itself
            entry = self._first(lines[label])
            cell = method_cell(entry, self.footnotes, self._several(lines[label]))
            section.lines.append(
                [
                    cell,
                    *self._cells(found, len(scores[label])),
                    *self._float_cells(floats.get(label)),
                ]
            )
            if found is not None:
                self._record(title, lines[label], baseline, found, floats.get(label))
        self.sections.append(section)
        self.used += [self.lines[line][name] for line in lines.values() for name in datasets]

    def table(self) -> Table:
        label = f"Δ{self.metric.key}{self.metric.arrow}"
        interval = f"{LEVEL:.0%} interval"
        columns = [
            Column("Method"),
            Column("images", number=True),
            Column(label, number=True),
            Column(interval, number=True),
            Column("won", number=True),
            Column("excludes 0"),
            Column(label, "against FP32", number=True),
            Column(interval, "against FP32", number=True),
        ]
        notes = [
            *statement(list(dict.fromkeys(self.used))),
            f"Paired by image: mean difference of {self.metric.key} to the best baseline, the W4A4 "
            "method that is not ours with the highest mean S; percentile bootstrap over images, "
            f"{RESAMPLES:,} resamples, seed 0; won: share of images, ties count half.",
            "Several seeds are averaged per image first. Each interval stands alone: none is "
            "corrected for the number of comparisons or for choosing the baseline on these images.",
        ]
        if self.left_out:
            found = "; ".join(f"{label} ({why})" for label, why in self.left_out.items())
            notes.append(f"Left out where it was so: {found}.")
        title = f"Paired differences in {self.metric.key}: {self.scope}"
        return Table(
            "stats", title, columns, self.sections, notes, self.footnotes.texts(), self.records
        )

    def _compare(self, scores: _Scores, reference: str, where: str) -> dict[str, Comparison]:
        try:
            return compare(scores, reference, higher=self.metric.higher)
        except DataError as error:
            raise DataError(f"{self.scope} on {where}: {error}") from error

    def _images(self, here: dict[str, Entry], datasets: list[str]) -> dict[str, float]:
        """Score by data set and image name."""
        found: dict[str, float] = {}
        for dataset in datasets:
            columns = []
            for row in here[dataset].rows:
                table = row.get("per_image") or {}
                if "name" not in table or self.metric.key not in table:
                    have = ", ".join(k for k in table if k != "name") or "none"
                    raise DataError(
                        f"{row['method']} on {dataset}: no per-image {self.metric.key} in the "
                        f"results (there: {have}); paired statistics need it"
                    )
                columns.append((table["name"], table[self.metric.key]))
            try:
                means = image_means(columns)
            except DataError as error:
                raise DataError(f"{here[dataset].method} on {dataset}: {error}") from error
            found.update({f"{dataset}/{name}": value for name, value in means.items()})
        return found

    def _baseline(self, lines: dict[str, Line], datasets: list[str]) -> str | None:
        """The best non-ours W4A4 method by mean S, over images if several data sets are pooled."""
        if len(datasets) == 1:
            best = strongest([self.lines[line][datasets[0]] for line in lines.values()])
            keys = [(entry.method, entry.budget) for entry in best[:1]]
        else:
            means = {}
            for line in lines.values():
                here = [self.lines[line][name] for name in datasets]
                if all(entry.baseline for entry in here):
                    total = sum(entry.rows[0]["count"] for entry in here)
                    means[line] = sum(e.mean("S") * e.rows[0]["count"] for e in here) / total
            keys = [max(means, key=lambda line: means[line])] if means else []
        return self._label(keys[0]) if keys else None

    def _label(self, line: Line) -> str:
        return f"{line[0]} ({line[1]})" if self._several(line) and line[1] else line[0]

    def _several(self, line: Line) -> bool:
        return sum(other[0] == line[0] for other in self.lines) > 1

    def _first(self, line: Line) -> Entry:
        return next(iter(self.lines[line].values()))

    def _cells(self, found: Comparison | None, images: int) -> list[Cell]:
        if found is None:
            return [
                Cell(str(images)),
                Cell("0"),
                Cell("the baseline"),
                Cell(MISSING),
                Cell(MISSING),
            ]
        return [
            Cell(str(found.images)),
            *interval_cells(found, self.options.digits),
            Cell(f"{found.won:.0%}"),
            Cell(verdict(found, self.metric)),
        ]

    def _float_cells(self, found: Comparison | None) -> list[Cell]:
        if found is None:
            return [Cell(MISSING), Cell(MISSING)]
        return interval_cells(found, self.options.digits)

    def _record(
        self, title: str, line: Line, baseline: str, found: Comparison, floats: Comparison | None
    ) -> None:
        self.records.append(
            {
                "model": self.scope.model,
                "stress": self.scope.stress,
                "limit": self.scope.limit,
                "dataset": title,
                "metric": self.metric.key,
                "method": line[0],
                "budget": line[1],
                "evidence": self._first(line).info.get("evidence"),
                "baseline": baseline,
                "images": found.images,
                "difference": found.difference,
                "low": found.low,
                "high": found.high,
                "won": found.won,
                "excludes_zero": found.excludes_zero,
                "difference_fp32": floats.difference if floats else None,
                "low_fp32": floats.low if floats else None,
                "high_fp32": floats.high if floats else None,
            }
        )


def interval_cells(found: Comparison, digits: int) -> list[Cell]:
    """Mean difference and its interval."""
    middle, low, high = (
        decimal(x, digits, sign=True) for x in (found.difference, found.low, found.high)
    )
    return [Cell(middle), Cell(f"[{low}, {high}]")]


def verdict(found: Comparison, metric: Metric) -> str:
    """Whether an interval excludes zero, and on which side it lies."""
    if not found.excludes_zero:
        return "no"
    return "yes, better" if (found.difference > 0) == metric.higher else "yes, worse"
