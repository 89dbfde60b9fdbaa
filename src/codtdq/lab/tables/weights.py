"""Tables S3 and S4: mean, deviation, 99th percentile and largest magnitude of a layer's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.errors import DataError
from codtdq.lab.tables.catalogue import TITLES
from codtdq.lab.tables.documents import Document
from codtdq.lab.tables.layout import MISSING, Cell, Column, Options, Section, Table, fixed
from codtdq.lab.tables.published import published_rows

STATISTICS = ("mean", "std", "p99", "absmax")


def weights_tables(documents: Sequence[Document], options: Options) -> list[Table]:
    """Return a table per model and layer; rows of several files of one layer stand together."""
    layers: dict[tuple[str, str], list[Document]] = {}
    origins: dict[tuple[str, str], dict[str, None]] = {}
    for document in documents:
        for row in document["rows"]:
            key = (document["model"], row["layer"])
            layers.setdefault(key, []).append(row)
            origins.setdefault(key, {})[document.get("weights", "unknown")] = None
    tables = [
        _table(model, layer, rows, list(origins[model, layer]), options)
        for (model, layer), rows in layers.items()
    ]
    if options.with_published and not any(r["published_table"] for t in tables for r in t.records):
        known = dict.fromkeys(row["layer"] for row in published_rows("weight_statistics"))
        raise DataError(
            f"--with-published: the paper's statistics are of cfrn's {' and '.join(known)}; leave "
            "the option out, or give these: codtdq bench weights --model cfrn --layers PATTERN"
        )
    return tables


def _table(
    model: str, layer: str, rows: list[Document], origins: list[str], options: Options
) -> Table:
    paper: dict[str, Document] = {}
    if options.with_published:
        found = published_rows("weight_statistics", model=model, layer=layer)
        paper = {row["method"]: row for row in found}
    ours = {row["method"]: row for row in rows}
    section, records = Section(""), []
    for method in dict.fromkeys([*paper, *ours]):
        row, theirs = ours.get(method), paper.get(method)
        title = theirs["printed"] if theirs else TITLES.get(method, method)
        section.lines.append([Cell(title), *(_cell(key, row, theirs) for key in STATISTICS)])
        record: dict[str, Any] = {"model": model, "layer": layer, "method": method}
        record |= {key: row[key] if row else None for key in STATISTICS}
        if options.with_published:
            record |= {f"{key}_published": theirs[key] if theirs else None for key in STATISTICS}
            record["published_table"] = theirs["table"] if theirs else None
        records.append(record)
    notes = [
        f"Weights {' / '.join(origins)}. Of the weight that the product uses (dequantized): mean, "
        "standard deviation (not corrected), 99th percentile by k-th value, largest magnitude."
    ]
    if paper:
        number = next(iter(paper.values()))["table"]
        notes.append(f"In brackets: the paper's Table {number}, of its own checkpoint.")
    heads = [Column(label, number=True) for label in ("Mean", "Std.", "P99", "AbsMax")]
    title = f"Parameter statistics: {model}, {layer}"
    return Table("weights", title, [Column("Model"), *heads], [section], notes, {}, records)


def _cell(key: str, row: Document | None, paper: Document | None) -> Cell:
    text = MISSING if row is None else _shown(key, row[key])
    return Cell(text, beside="" if paper is None else _shown(key, paper[key]))


def _shown(key: str, value: float) -> str:
    return f"{value:.3e}" if key == "mean" else fixed(value, 5)
