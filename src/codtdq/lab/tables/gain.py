"""The gain of COD-TDQ over the strongest baseline, per model and data set, whatever its sign."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from codtdq.lab.tables.catalogue import OUR_METHOD, order_of, stress_title
from codtdq.lab.tables.cells import failure_refs, method_cell
from codtdq.lab.tables.entries import Entry, Scope, datasets_of
from codtdq.lab.tables.layout import (
    MISSING,
    Cell,
    Column,
    Footnotes,
    Options,
    Section,
    Table,
    decimal,
)
from codtdq.lab.tables.provenance import statement
from codtdq.lab.tables.published import published_gain

METRIC = "S"


def strongest(entries: Sequence[Entry], metric: str = METRIC) -> list[Entry]:
    """Return the baselines with the highest mean; several only if they are exactly alike."""
    found = [e for e in entries if e.baseline and math.isfinite(e.mean(metric))]
    best = max((entry.mean(metric) for entry in found), default=math.nan)
    alike = [entry for entry in found if entry.mean(metric) == best]
    return sorted(alike, key=lambda entry: order_of(entry.method))


def gain_table(scopes: Mapping[Scope, Sequence[Entry]], options: Options) -> Table | None:
    """Return the paper's table of backbone-wise gains; one line per model and data set.

    The strongest baseline is the one with the highest mean S on that data set among the W4A4
    methods that are not ours, naive W4A4 included.
    """
    footnotes = Footnotes()
    section, records, used = Section(""), [], []
    for scope, entries in scopes.items():
        for dataset in datasets_of(entries):
            here = [entry for entry in entries if entry.dataset == dataset]
            rivals = strongest(here)
            for ours in (entry for entry in here if entry.method == OUR_METHOD):
                if not rivals:
                    continue
                section.lines.append(_line(scope, ours, rivals, footnotes, options))
                records.append(_record(scope, ours, rivals, options))
                used += [ours, *rivals]
    if not section.lines:
        return None
    columns = [
        Column("Model"),
        Column("Data set"),
        Column("Strongest baseline (S)"),
        Column("COD-TDQ (S)", number=True),
        Column("Gain", number=True),
    ]
    notes = [
        *statement(used),
        "Strongest: the highest mean S on that data set among W4A4 methods that are not ours; "
        "gains are taken before rounding.",
    ]
    stresses = dict.fromkeys(stress_title(s.stress) for s in scopes if s.stress)
    title = ", ".join(["Gain of COD-TDQ over the strongest baseline in S", *stresses])
    return Table("gain", title, columns, [section], notes, footnotes.texts(), records)


def _line(
    scope: Scope, ours: Entry, rivals: Sequence[Entry], footnotes: Footnotes, options: Options
) -> list[Cell]:
    digits = options.digits
    rival, mean = rivals[0].mean(METRIC), ours.mean(METRIC)
    names = " / ".join(entry.title for entry in rivals) + (" tie" if len(rivals) > 1 else "")
    refs = tuple(
        dict.fromkeys(ref for entry in rivals for ref in method_cell(entry, footnotes).refs)
    )
    paper = published_gain(scope.model, ours.dataset) if options.with_published else None
    limit = f", at most {scope.limit} images" if scope.limit is not None else ""
    return [
        Cell(f"{scope.model}{limit}"),
        Cell(ours.dataset),
        Cell(
            f"{names} ({decimal(rival, digits)})",
            refs=refs,
            beside=_paper_rival(paper, digits) if paper else "",
        ),
        Cell(
            decimal(mean, digits) if ours.rows else "failed",
            beside=decimal(paper["S"], digits) if paper else "",
            refs=method_cell(ours, footnotes).refs + failure_refs(ours, footnotes),
        ),
        Cell(
            decimal(mean - rival, digits, sign=True) if ours.rows else MISSING,
            beside=decimal(paper["gain"], digits, sign=True) if paper else "",
        ),
    ]


def _paper_rival(paper: dict[str, Any], digits: int) -> str:
    return f"paper: {paper['printed']} {decimal(paper['baseline_S'], digits)}"


def _record(scope: Scope, ours: Entry, rivals: Sequence[Entry], options: Options) -> dict[str, Any]:
    rival, mean = rivals[0].mean(METRIC), ours.mean(METRIC)
    finite = math.isfinite(mean)
    record: dict[str, Any] = {
        "model": scope.model,
        "stress": scope.stress,
        "limit": scope.limit,
        "budget": ours.budget,
        "dataset": ours.dataset,
        "baseline": " / ".join(entry.method for entry in rivals),
        "baseline_S": rival,
        "S": mean if finite else None,
        "gain": mean - rival if finite else None,
    }
    if options.with_published:
        paper = published_gain(scope.model, ours.dataset)
        record["gain_published"] = paper["gain"] if paper else None
    return record
