"""Table S6: what each variant of the ablation switches on. Definitions: no results are needed."""

from __future__ import annotations

from codtdq.lab.tables.catalogue import ABLATION
from codtdq.lab.tables.layout import MISSING, Cell, Column, Options, Section, Table, plain
from codtdq.lab.tables.published import published_rows


def variants_table(options: Options) -> Table:
    """Return the paper's variants under the names they have here, then ours."""
    paper = {row["method"]: row for row in published_rows("variants")}
    section, extra, records = Section("In the paper"), Section("Ours"), []
    for method, variant in ABLATION.items():
        theirs = paper.get(method)
        line = [
            Cell(method),
            Cell(plain(variant.dstg)),
            Cell(plain(variant.dcrp)),
            Cell(variant.constraints),
            Cell(variant.scope),
            Cell(variant.description),
        ]
        record = {
            "method": method,
            "dstg": variant.dstg,
            "dcrp": variant.dcrp,
            "constraints": variant.constraints,
            "scope": variant.scope,
            "description": variant.description,
        }
        if options.with_published:
            words = [theirs[key] if theirs else MISSING for key in _WORDS]
            line += [Cell(word) for word in words]
            record |= {f"{key}_published": theirs[key] if theirs else None for key in _WORDS}
        (section if theirs else extra).lines.append(line)
        records.append(record)
    columns = [
        Column(label)
        for label in ("Variant", "DSTG", "DCRP", "Active constraints", "Scope", "Description")
    ]
    if options.with_published:
        columns += [Column(label, "The paper's words (Table S6)") for label in _WORDS.values()]
    notes = ["C1 bounds the step over the deviation, C2 the zero-bin mass of a range."]
    title = "Variants of the ablation"
    return Table("variants", title, columns, [section, extra], notes, {}, records)


_WORDS = {"printed": "Variant", "scope": "Scope", "description": "Description"}
