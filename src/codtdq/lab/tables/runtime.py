"""Table 5: size, throughput, latency and peak memory of whole networks, ours and the rivals'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.errors import DataError
from codtdq.lab.tables.catalogue import FLOAT, OURS, TITLES, order_of
from codtdq.lab.tables.documents import Document
from codtdq.lab.tables.layout import (
    MISSING,
    Cell,
    Column,
    Metric,
    Options,
    Section,
    Table,
    fixed,
    rank,
)
from codtdq.lab.tables.published import published_rows, stated

MB = 1e6
DIGITS = 2  # as the paper prints them
# field of a row, published field, heading, which way is better, unit
_NUMBERS = (
    ("weight_bytes", "weight_mb", "Weight (MB)", False, MB),
    ("images_per_second", "images_per_second", "FPS (img/s)", True, 1),
    ("ms_per_image", "ms_per_image", "Latency (ms/img)", False, 1),
    ("peak_bytes", "peak_mb", "Peak memory (MB)", False, MB),
)


def runtime_tables(documents: Sequence[Document], options: Options) -> list[Table]:
    """Return a table per model, batch size and thread count; the paper has numbers of one model."""
    models = dict.fromkeys(document["model"] for document in documents)
    known = dict.fromkeys(row["model"] for row in published_rows("runtime"))
    if options.with_published and not models.keys() & known.keys():
        raise DataError(
            f"--with-published: the paper's runtime table is of {', '.join(known)}, these rows are "
            f"of {', '.join(models)}; leave the option out, or give rows of {', '.join(known)}"
        )
    return [runtime_table(document, options) for document in documents]


def runtime_table(document: Document, options: Options) -> Table:
    """Return one table: a model at one batch size and thread count on one machine.

    With the paper's numbers, rows that only the paper has are shown too.
    """
    paper: dict[str, Document] = {}
    if options.with_published:
        paper = {row["method"]: row for row in published_rows("runtime", model=document["model"])}
    rows = {row["candidate"]: row for row in document["rows"]}
    names = [*paper, *sorted((name for name in rows if name not in paper), key=order_of)]
    metrics = [Metric(label, label, higher) for _, _, label, higher, _ in _NUMBERS]
    sections = {title: Section(title) for title in ("", "Ours", "Other runtimes")}
    ranked: dict[str, list[tuple[Cell, float]]] = {metric.key: [] for metric in metrics}
    for name in names:
        row = rows.get(name, {})
        cells = [Cell(_title(name, paper))]
        for key, published_key, label, _, unit in _NUMBERS:
            value = row.get(key)
            beside = fixed(paper[name][published_key], DIGITS) if name in paper else ""
            cell = Cell(MISSING if value is None else fixed(value / unit, DIGITS), beside=beside)
            if value is not None and _is_method(name, row):
                ranked[label].append((cell, value / unit))
            cells.append(cell)
        ratio = _ratio(row)
        cells += [
            Cell(MISSING if ratio is None else f"{fixed(ratio, DIGITS)}x"),
            Cell(str(row.get("execution", "not measured"))),
        ]
        sections[_section(name, row)].lines.append(cells)
    for metric in metrics:
        rank(ranked[metric.key], metric, DIGITS)
    columns = [
        Column("Method"),
        *(Column(m.key + m.arrow, number=True) for m in metrics),
        Column("Speed-up", number=True),
        Column("Execution"),
    ]
    return Table(
        "runtime",
        f"Runtime efficiency: {_where(document)}",
        columns,
        [section for section in sections.values() if section.lines],
        _notes(document, bool(paper)),
        {},
        [_record(document, name, rows.get(name, {}), paper.get(name), options) for name in names],
    )


def _title(name: str, paper: dict[str, Document]) -> str:
    return str(paper[name]["printed"]) if name in paper else TITLES.get(name, name)


def _is_method(name: str, row: Document) -> bool:
    """Whether a row takes part in best and second: as in the paper, FP32 does not."""
    return not _is_other_runtime(row) and name != FLOAT


def _is_other_runtime(row: Document) -> bool:
    return "note" in row  # how it was made, which only they have


def _section(name: str, row: Document) -> str:
    if _is_other_runtime(row):
        return "Other runtimes"
    return "Ours" if name in OURS else ""


def _ratio(row: Document) -> float | None:
    ratio = row.get("speedup")
    return ratio["median"] if isinstance(ratio, dict) else ratio


def _where(document: Document) -> str:
    size, threads = document["input_size"], document.get("threads")
    parts = [str(document["model"]), f"{size} x {size}", f"batch {document['batch']}"]
    if threads is not None:
        parts.append(f"{threads} thread{'s' if threads > 1 else ''}")
    return ", ".join(parts)


def _device(document: Document) -> str:
    machine = document["machine"]
    return str(document.get("device") or machine.get("cpu") or "unknown device")


def _notes(document: Document, with_published: bool) -> list[str]:
    executions = dict.fromkeys(str(row.get("execution")) for row in document["rows"])
    memory = (
        "allocated on the GPU" if document.get("device") else "resident in a process that predicts"
    )
    notes = [
        f"{_device(document)}; weights {document.get('weights', 'unknown')}; MB are 10^6 bytes; "
        f"peak memory: {memory}. Best and second among quantized rows."
    ]
    if "simulated" in executions:
        notes.append(
            "Simulated: quantized and dequantized in float, so its time is not that of 4-bit "
            "arithmetic; native: on 4-bit codes."
        )
    if with_published:
        setting = stated("sec:real_deployment", "setting of the runtime table: input side")
        side, batch = int(setting["side"]), int(setting["batch"])
        notes.append(
            f"In brackets: the paper's Table 5, on an NVIDIA RTX 4090 with its Triton path, "
            f"{side} x {side}, batch {batch}; ours: {_device(document)}, "
            f"{document['input_size']} x {document['input_size']}, batch {document['batch']}. "
            "Compare ratios within a column, not the two sides of a cell."
        )
    return notes


def _record(
    document: Document, name: str, row: Document, paper: Document | None, options: Options
) -> dict[str, Any]:
    cover = (document.get("coverage") or {}).get(name) or {}
    record = {
        "model": document["model"],
        "device": _device(document),
        "input_size": document["input_size"],
        "batch": document["batch"],
        "threads": document.get("threads"),
        "weights": document.get("weights"),
        "method": name,
        **{key: row.get(key) for key, *_ in _NUMBERS},
        "speedup": _ratio(row),
        "execution": row.get("execution"),
        "native_of_quantized": cover.get("of_quantized"),
    }
    if options.with_published:
        for _, key, *_ in _NUMBERS:
            record[f"{key}_published"] = paper[key] if paper else None
        record["published_table"] = "5" if paper else None
    return record
