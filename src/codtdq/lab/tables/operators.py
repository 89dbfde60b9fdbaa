"""Table S10: which families of operators there are, how many, and which are quantized."""

from __future__ import annotations

from collections.abc import Sequence

from codtdq.lab.tables.documents import Document
from codtdq.lab.tables.layout import MISSING, Cell, Column, Options, Section, Table, plain
from codtdq.lab.tables.published import published_rows


def operators_tables(documents: Sequence[Document], options: Options) -> list[Table]:
    """Return a table per model and method; the paper's rule stands beside where it has one."""
    return [_table(document, options) for document in documents]


def _table(document: Document, options: Options) -> Table:
    paper = {row["family"]: row for row in published_rows("operator_families")}
    section, records = Section(""), []
    for family in document["families"]:
        theirs = paper.get(family["family"]) if options.with_published else None
        line = [
            Cell(family["title"]),
            Cell(family["types"] or MISSING),
            Cell(f"{family['count']:,}"),
            Cell(
                f"{family['quantized']:,}",
                beside=f"paper: {plain(theirs['quantized'])}" if theirs else "",
            ),
            Cell(f"{family['parameters']:,}" if family["parameters"] else MISSING),
            Cell(family["rule"]),
        ]
        record = {"model": document["model"], "method": document["method"], **family}
        if options.with_published:
            line.append(Cell(theirs["rule"] if theirs else MISSING))
            record["quantized_published"] = theirs["quantized"] if theirs else None
            record["rule_published"] = theirs["rule"] if theirs else None
        section.lines.append(line)
        records.append(record)
    columns = [
        Column("Operator family"),
        Column("Types"),
        Column("count", number=True),
        Column("quantized", number=True),
        Column("weights", number=True),
        Column("rule"),
    ]
    if options.with_published:
        columns.append(Column("rule in the paper (Table S10)"))
    modules = []
    for part in document["modules"]:
        counts = [Cell(f"{part[key]:,}") for key in ("count", "quantized", "parameters")]
        modules.append([Cell(part["module"]), Cell(part["types"]), *counts, Cell(MISSING)])
    for line in modules:
        line += [Cell(MISSING)] * (len(columns) - len(line))
    notes = [
        "Operators are counted from the plan, functions (Softmax, sums, interpolation) by the "
        "calls of one forward pass; weights: values of the operators' matrices."
    ]
    title = f"Operators: {document['model']} under {document['method']}"
    sections = [section, Section("By module", modules)]
    return Table("operators", title, columns, sections, notes, {}, records)
