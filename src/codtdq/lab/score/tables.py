"""Scores as tables: methods down, data sets times metrics across; and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.errors import ConfigError
from codtdq.lab.score.run import Scored
from codtdq.lab.tables.layout import METRICS, MISSING, Cell, Column, Section, Table, decimal, rank
from codtdq.lab.tables.significance import POOLED, interval_cells, verdict
from codtdq.lab.tables.statistics import LEVEL, RESAMPLES, Comparison, compare

COLUMNS = ("S", "wF", "E_mean", "E_max", "E_adp", "F_mean", "F_max", "F_adp", "MAE")


def score_table(scored: Scored, metrics: Sequence[str] = COLUMNS, digits: int = 3) -> Table:
    """One line per method; best and second of every column are marked."""
    check_metrics(metrics)
    columns = [Column("Method")]
    columns += [
        Column(f"{key}{METRICS[key].arrow}", dataset, METRICS[key], number=True)
        for dataset in scored.datasets
        for key in metrics
    ]
    section = Section("", [[Cell(method)] for method in scored.methods])
    records: list[dict[str, Any]] = []
    for dataset in scored.datasets:
        means = {
            method: scored.cells[method, dataset].means()
            for method in scored.methods
            if (method, dataset) in scored.cells
        }
        for method, found in means.items():
            kept = {key: found[key] for key in found if key in metrics or key not in COLUMNS}
            records.append({"method": method, "dataset": dataset, **kept})
        for key in metrics:
            ranked: list[tuple[Cell, float]] = []
            for method, line in zip(scored.methods, section.lines):
                cell = Cell(MISSING)
                if method in means:
                    cell.text = decimal(means[method][key], digits)
                    ranked.append((cell, means[method][key]))
                line.append(cell)
            rank(ranked, METRICS[key], digits)
    counts = ", ".join(f"{name} {_count(scored, name)}" for name in scored.datasets)
    notes = [
        f"Images: {counts}.",
        "Maps are min-max scaled per image, the object is ground truth > 128; max and mean of E "
        "and F are of the mean curve.",
        *scored.notes,
    ]
    return Table("scores", "Scores", columns, [section], notes, {}, records)


def stats_table(
    scored: Scored, metric: str = "S", reference: str | None = None, digits: int = 4
) -> Table | None:
    """Paired differences to a reference (default: the first method), per data set and pooled.

    None if there is nothing to compare.
    """
    check_metrics([metric])
    reference = reference or scored.methods[0]
    if reference not in scored.methods:
        raise ConfigError(f"no method {reference!r}; accepted: {', '.join(scored.methods)}")
    per_dataset = {name: _image_scores(scored, name, metric) for name in scored.datasets}
    everywhere = [m for m in scored.methods if all(m in found for found in per_dataset.values())]
    groups = dict(per_dataset)
    if len(per_dataset) > 1:
        groups[f"{POOLED} ({len(per_dataset)})"] = {
            method: {
                f"{name}/{image}": value
                for name, found in per_dataset.items()
                for image, value in found[method].items()
            }
            for method in everywhere
        }
    sections, records = [], []
    for title, scores in groups.items():
        if reference not in scores or len(scores) < 2:
            continue
        found = _compared(scores, reference, METRICS[metric].higher)
        section = Section(title)
        for method in scored.methods:
            if method in found:
                section.lines.append(_line(method, found[method], metric, digits))
                records.append(_record(title, metric, method, reference, found[method]))
        sections.append(section)
    if not sections:
        return None
    label = f"Δ{metric}{METRICS[metric].arrow}"
    columns = [
        Column("Method"),
        Column("images", number=True),
        Column(label, number=True),
        Column(f"{LEVEL:.0%} interval", number=True),
        Column("won", number=True),
        Column("excludes 0"),
    ]
    notes = [
        f"Paired by image: mean difference of {metric} to {reference} on the images that both "
        f"have; percentile bootstrap over images, {RESAMPLES:,} resamples, seed 0; won: share of "
        "images, ties count half. No interval is corrected for the number of comparisons."
    ]
    title = f"Paired differences in {metric} to {reference}"
    return Table("stats", title, columns, sections, notes, {}, records)


def per_image_records(scored: Scored) -> list[dict[str, Any]]:
    """A row per map: data set, method, image and scores."""
    return [
        {"dataset": dataset, "method": method, **row}
        for dataset in scored.datasets
        for method in scored.methods
        if (method, dataset) in scored.cells
        for row in scored.cells[method, dataset].per_image()
    ]


def check_metrics(metrics: Sequence[str]) -> None:
    """Refuse a name that is no score."""
    unknown = [key for key in metrics if key not in METRICS]
    if unknown:
        raise ConfigError(f"metric {', '.join(unknown)}; accepted: {', '.join(METRICS)}")


def _count(scored: Scored, dataset: str) -> str:
    counts = {len(cell.images) for (_, name), cell in scored.cells.items() if name == dataset}
    return "-".join(str(count) for count in sorted(counts))


def _image_scores(scored: Scored, dataset: str, metric: str) -> dict[str, dict[str, float]]:
    return {
        method: {row["name"]: row[metric] for row in scored.cells[method, dataset].per_image()}
        for method in scored.methods
        if (method, dataset) in scored.cells
    }


def _compared(
    scores: dict[str, dict[str, float]], reference: str, higher: bool
) -> dict[str, Comparison]:
    """Compare pair by pair: one method that lacks an image takes it from no other comparison."""
    found: dict[str, Comparison] = {}
    for method in scores:
        if method == reference:
            continue
        both = scores[reference].keys() & scores[method].keys()
        pair = {
            name: {image: value for image, value in scores[name].items() if image in both}
            for name in (reference, method)
        }
        found.update(compare(pair, reference, higher=higher))
    return found


def _line(method: str, found: Comparison, metric: str, digits: int) -> list[Cell]:
    return [
        Cell(method),
        Cell(str(found.images)),
        *interval_cells(found, digits),
        Cell(f"{found.won:.0%}"),
        Cell(verdict(found, METRICS[metric])),
    ]


def _record(
    dataset: str, metric: str, method: str, reference: str, found: Comparison
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "metric": metric,
        "method": method,
        "reference": reference,
        "images": found.images,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "won": found.won,
        "excludes_zero": found.excludes_zero,
    }
