"""Tables of scores: methods down, data sets times metrics across (the paper's 1, 2, 3, 4, S2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from codtdq.lab.tables.catalogue import ABLATION, ABLATION_ONLY, BIT_WIDTHS, GROUPS, OTHER, order_of
from codtdq.lab.tables.cells import failure_refs, failures, method_cell
from codtdq.lab.tables.entries import Entry, Scope, datasets_of
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
    plain,
    rank,
)
from codtdq.lab.tables.provenance import statement
from codtdq.lab.tables.published import published_entry

ESCNET = "escnet"  # also the first word of its smaller model
Line = tuple[str, str | None]  # method and budget: one line of a table
Setting = Callable[[Entry], tuple[str, ...]]

_RANK_W4A4 = (
    "Best and second among W4A4 methods only, by the printed digits, ties included; FP32 and "
    "8-bit references take no part."
)

_LEGEND = (
    "calib.: calibration images; grad.: whether gradients are taken; W and A bits: measured per "
    "value of weights and activations, side information included."
)


def main_table(scope: Scope, entries: Sequence[Entry], options: Options) -> Table | None:
    """Tables 2, 3 and S2: every method with how it works, what it costs and what it scores."""
    used = [entry for entry in entries if entry.method not in ABLATION_ONLY]
    if not used:
        return None
    columns = [
        Column("ranges"),
        Column("granularity"),
        Column("calib.", number=True),
        Column("grad."),
        Column("W bits", number=True),
        Column("A bits", number=True),
    ]
    groups = {name: group for group, names in GROUPS.items() for name in names}
    build = _ScoreTable("main", used, columns, _properties, lambda e: groups.get(e.method, OTHER))
    notes = [*statement(used), _LEGEND, _RANK_W4A4]
    return build.table(scope, f"W4A4 post-training quantization: {scope}", notes, options)


def escnet_table(scope: Scope, entries: Sequence[Entry], options: Options) -> Table | None:
    """Table S2: scores of ESCNet alone, as the paper lays them out, without other columns."""
    used = [entry for entry in entries if entry.method not in ABLATION_ONLY]
    if not used or scope.model.split("-")[0] != ESCNET:
        return None
    groups = {name: group for group, names in GROUPS.items() for name in names}
    build = _ScoreTable("escnet", used, [], lambda _: (), lambda e: groups.get(e.method, OTHER))
    notes = [*statement(used), _RANK_W4A4]
    return build.table(scope, f"W4A4 post-training quantization on ESCNet: {scope}", notes, options)


def ablation_table(scope: Scope, entries: Sequence[Entry], options: Options) -> Table | None:
    """Build Table 4, with every variant of the paper's variant table and ours."""
    used = [entry for entry in entries if entry.method in ABLATION]
    if not any(entry.method in ABLATION_ONLY for entry in used):
        return None
    columns = [Column("DSTG"), Column("DCRP"), Column("scope")]

    def setting(entry: Entry) -> tuple[str, ...]:
        variant = ABLATION[entry.method]
        return ("yes" if variant.dstg else "no", variant.constraints, variant.scope)

    build = _ScoreTable("ablation", used, columns, setting, lambda _: "", order=list(ABLATION))
    notes = [*statement(used), "Best and second among all rows, by the printed digits."]
    return build.table(scope, f"Ablation: {scope}", notes, options)


def bits_table(scope: Scope, entries: Sequence[Entry], options: Options) -> Table | None:
    """Build Table 1: naive quantization by bit width."""
    used = [entry for entry in entries if entry.method in BIT_WIDTHS]
    if len({entry.method for entry in used}) < 2:
        return None
    columns = [Column("W bits", number=True), Column("A bits", number=True)]
    build = _ScoreTable("bits", used, columns, _measured_bits, lambda _: "")
    rule = "Best and second among all rows, FP32 included, as in the paper's Table 1."
    notes = [*statement(used, "Simulated quantization"), rule]
    return build.table(scope, f"Naive quantization by bit width: {scope}", notes, options)


def _measured_bits(entry: Entry) -> tuple[str, ...]:
    bits = [entry.effective_bits(kind) for kind in ("weight", "activation")]
    return tuple(MISSING if value is None else f"{value:.2f}" for value in bits)


def _properties(entry: Entry) -> tuple[str, ...]:
    info = entry.info
    return (
        plain(info.get("ranges")),
        plain(info.get("granularity")),
        plain(entry.calibration_images),
        plain(info.get("gradients")),
        *_measured_bits(entry),
    )


class _ScoreTable:
    """Shared by the four: lines by method, scores by data set."""

    def __init__(
        self,
        kind: str,
        entries: Sequence[Entry],
        settings: list[Column],
        setting: Setting,
        group: Callable[[Entry], str],
        order: list[str] | None = None,
    ) -> None:
        self.kind, self.entries, self.settings, self.setting = kind, entries, settings, setting
        self.group = group
        self.key = order.index if order else order_of
        self.footnotes = Footnotes()

    def table(self, scope: Scope, title: str, notes: list[str], options: Options) -> Table:
        metrics = [METRICS.get(key, Metric(key, key)) for key in options.metrics]
        datasets = datasets_of(self.entries)
        places = [(dataset, metric) for dataset in datasets for metric in metrics]
        scores = [Column(m.key + m.arrow, d, metric=m, number=True) for d, m in places]
        columns = [Column("Method"), *self.settings, *scores]
        ranked: dict[tuple[str, str], list[tuple[Cell, float]]] = {}
        sections: dict[str, Section] = {}
        records = []
        lines = self._lines()
        for line, here in lines.items():
            any_entry = next((e for e in here.values() if e.rows), next(iter(here.values())))
            several = sum(other[0] == line[0] for other in lines) > 1
            cells = [
                method_cell(any_entry, self.footnotes, several),
                *(Cell(text) for text in self.setting(any_entry)),
            ]
            for dataset, metric in places:
                cell = self._score(scope, here.get(dataset), metric, metrics[0], options)
                cells.append(cell)
                if dataset in here and (here[dataset].ranked or self.kind == "bits"):
                    value = here[dataset].mean(metric.key)
                    ranked.setdefault((dataset, metric.key), []).append((cell, value))
            heading = self.group(any_entry)
            sections.setdefault(heading, Section(heading)).lines.append(cells)
            records += [_record(scope, heading, e, metrics, options) for e in here.values()]
        for dataset, metric in places:
            rank(ranked.get((dataset, metric.key), []), metric, options.digits)
        names = [*GROUPS, OTHER]
        ordered = sorted(
            sections.values(), key=lambda s: names.index(s.title) if s.title in names else 0
        )
        if any(
            entry.method not in BIT_WIDTHS and not entry.ranked and entry.rows
            for entry in self.entries
        ):
            notes = [*notes, _unranked(self.entries)]
        return Table(self.kind, title, columns, ordered, notes, self.footnotes.texts(), records)

    def _lines(self) -> dict[Line, dict[str, Entry]]:
        lines: dict[Line, dict[str, Entry]] = {}
        for entry in sorted(self.entries, key=lambda e: (self.key(e.method), e.budget or "")):
            lines.setdefault((entry.method, entry.budget), {})[entry.dataset] = entry
        return lines

    def _score(
        self, scope: Scope, entry: Entry | None, metric: Metric, first: Metric, options: Options
    ) -> Cell:
        if entry is None:
            return Cell(MISSING)
        refs: tuple[str, ...] = ()
        if metric is first:  # one reference per data set is enough
            refs = failure_refs(entry, self.footnotes)
        if not entry.rows:
            return Cell("failed", refs=refs)
        if all(metric.key not in row["metrics"] for row in entry.rows):
            return Cell(MISSING, refs=refs)
        text, spread = decimal(entry.mean(metric.key), options.digits), entry.std(metric.key)
        if spread is not None:
            text += f"±{decimal(spread, options.digits)}"
        beside = ""
        if options.with_published:
            paper = published_entry(scope.model, entry.dataset, entry.method)
            beside = (
                decimal(paper[metric.key], options.digits) if paper and metric.key in paper else ""
            )
        return Cell(text, beside=beside, refs=refs)


def _unranked(entries: Sequence[Entry]) -> str:
    names = dict.fromkeys(
        e.title for e in entries if e.method not in BIT_WIDTHS and not e.ranked and e.rows
    )
    return f"Not W4A4 by their own account, so not ranked: {', '.join(names)}."


def _record(
    scope: Scope, group: str, entry: Entry, metrics: Sequence[Metric], options: Options
) -> dict[str, Any]:
    """Return one entry at full precision, flat."""
    info, environment = entry.info, (entry.rows[0].get("environment") or {}) if entry.rows else {}
    record: dict[str, Any] = {
        "model": scope.model,
        "stress": scope.stress,
        "limit": scope.limit,
        "group": group,
        "method": entry.method,
        "title": entry.title,
        "budget": entry.budget,
        "evidence": info.get("evidence"),
        "ranges": info.get("ranges"),
        "granularity": info.get("granularity"),
        "calibration_images": entry.calibration_images,
        "gradients": info.get("gradients"),
        "weight_bits": entry.effective_bits("weight"),
        "activation_bits": entry.effective_bits("activation"),
        "dataset": entry.dataset,
        "images": entry.rows[0]["count"] if entry.rows else None,
        "seeds": " ".join(str(row["seed"]) for row in entry.rows),
        "status": "ok" if entry.rows else "failed",
        "error": "; ".join(failures(entry)) or None,
    }
    paper = published_entry(scope.model, entry.dataset, entry.method)
    for metric in metrics:
        mean = entry.mean(metric.key)
        record[metric.key] = mean if math.isfinite(mean) else None
        spread = entry.std(metric.key)
        record[f"{metric.key}_std"] = spread if spread is not None and spread >= 0 else None
        if options.with_published:
            record[f"{metric.key}_published"] = paper.get(metric.key) if paper else None
    if options.with_published:
        record["published_table"] = paper["table"] if paper else None
    names = ("codtdq", "torch", "cpu")
    return {**record, **{f"environment_{name}": environment.get(name) for name in names}}
