"""Table S1: the bytes of checkpoints, and what the packed ones hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.errors import DataError
from codtdq.lab.tables.catalogue import TITLES
from codtdq.lab.tables.documents import Document
from codtdq.lab.tables.layout import MISSING, Cell, Column, Options, Section, Table, fixed
from codtdq.lab.tables.published import published_rows, stated

MB = 1e6
_BYTES = ("packed_weights", "weight_scales", "metadata")


def storage_table(documents: Sequence[Document], options: Options) -> Table:
    """Return one line per model and method."""
    found = [
        (document["model"], method, split)
        for document in documents
        for method, split in document["splits"].items()
    ]
    section, records, beside_any = Section(""), [], False
    for model, method, split in found:
        paper = _paper(model, method) if options.with_published else {}
        beside_any |= bool(paper)
        section.lines.append(_line(model, method, split, paper))
        records.append(_record(model, method, split, paper, options))
    if options.with_published and not beside_any:
        names = ", ".join(dict.fromkeys(f"{model} by {method}" for model, method, _ in found))
        raise DataError(
            f"--with-published: the paper's storage table is of cfrn and escnet by cod-tdq, these "
            f"rows are of {names}; leave the option out, or give such rows"
        )
    columns = [Column("Model"), Column("Method")] + [
        Column(label, number=True)
        for label in (
            "FP32 (MB)",
            "Packed INT4 (MB)",
            "Ratio",
            "packed weights (B)",
            "weight scales (B)",
            "metadata (B)",
            "overhead",
        )
    ]
    notes = [
        "FP32: the parameters at 4 bytes each; packed: all files of the packed directory; MB are "
        "10^6 bytes; overhead: scales and metadata over packed weights."
    ]
    if beside_any:
        notes.append(
            "In brackets: the paper's Table S1 and, for CFRN, the bytes of its deployment section; "
            "its runtime table gives 775.40 and 108.19 MB for the same two files."
        )
    return Table("storage", "Checkpoint storage", columns, [section], notes, {}, records)


def _paper(model: str, method: str) -> dict[str, float]:
    rows = published_rows("storage", model=model, method=method)
    found = {key: rows[0][key] for key in ("fp32_mb", "packed_mb", "ratio")} if rows else {}
    if found and model == "cfrn":  # the text splits the bytes of CFRN only
        where = "sec:real_deployment"
        extra = stated(where, "bytes of scale")
        found |= {
            "packed_weights": stated(where, "bytes of the ideal")["bytes"],
            "weight_scales": extra["scales"],
            "metadata": extra["metadata"],
            "overhead": stated(where, "scales and metadata")["percent"] / 100,
        }
    return found


def _line(model: str, method: str, split: Document, paper: dict[str, float]) -> list[Cell]:
    def beside(key: str, form: str) -> str:
        return format(paper[key], form) if key in paper else ""

    ratio = beside("ratio", ".1f")
    return [
        Cell(model),
        Cell(TITLES.get(method, method)),
        Cell(fixed(split["fp32"] / MB, 1), beside=beside("fp32_mb", ".1f")),
        Cell(fixed(split["total"] / MB, 1), beside=beside("packed_mb", ".1f")),
        Cell(f"{fixed(split['fp32'] / split['total'], 1)}x", beside=ratio and f"{ratio}x"),
        *(Cell(_count(split.get(key)), beside=beside(key, ",.0f")) for key in _BYTES),
        Cell(_share(split.get("overhead")), beside=beside("overhead", ".3%")),
    ]


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3%}"


def _record(
    model: str, method: str, split: Document, paper: dict[str, float], options: Options
) -> dict[str, Any]:
    record = {
        "model": model,
        "method": method,
        "fp32_bytes": split["fp32"],
        "packed_bytes": split["total"],
        "ratio": split["fp32"] / split["total"],
        **{key: split.get(key) for key in (*_BYTES, "overhead")},
    }
    if options.with_published:
        names = ("fp32_mb", "packed_mb", "ratio", *_BYTES, "overhead")
        record |= {f"{name}_published": paper.get(name) for name in names}
    return record
