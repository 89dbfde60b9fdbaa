"""The page of a benchmark run: scores, splits, images against FP32, what each method needs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from codtdq.lab.pages.html import command_block, escape, page, scrolling_table
from codtdq.lab.tables.catalogue import BIT_WIDTHS, FLOAT, GROUPS, OTHER, order_of
from codtdq.lab.tables.entries import Entry, Scope, datasets_of, nominal_bits, scopes_of
from codtdq.lab.tables.provenance import statement
from codtdq.lab.tables.results import Results

SCRIPTS = ("dom.js", "table.js", "chart.js", "benchmark.js")
METRICS = {
    "S": "S-measure, higher is better",
    "wF": "weighted F, higher is better",
    "E_mean": "mean E, higher is better",
    "F_mean": "mean F, higher is better",
    "MAE": "mean absolute error, lower is better",
}
PER_IMAGE = "S"  # one metric per image: five would make the page as large as the results


def benchmark_page(results: Results, command: str, source: str = "") -> str:
    """Return the HTML text; `command` and `source` say where it comes from."""
    scopes = scopes_of(results.rows)
    models = ", ".join(dict.fromkeys(scope.model for scope in scopes))
    methods = len({row["method"] for row in results.rows})
    failed = [row for row in results.rows if row["status"] != "ok"]
    sections = [
        ("scores", "Scores", _SCORES),
        ("splits", "One data set", _SPLITS),
        ("images", "Images against FP32", _IMAGES),
        ("methods", "What each method needs", _METHODS),
        *([("failures", "Failed cells", _failures(failed))] if failed else []),
        ("provenance", "Provenance", _provenance(scopes, results, command, source)),
    ]
    return page(
        "Benchmark of quantization methods",
        f"{methods} methods on {models}; {len(results.rows)} cells",
        sections,
        {"metrics": METRICS, "scopes": [_scope(s, e) for s, e in scopes.items()]},
        SCRIPTS,
    )


def _scope(scope: Scope, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return one comparison: its methods, with all data sets of each in one row."""
    datasets = datasets_of(entries)
    rows: dict[str, dict[str, Entry]] = {}
    for entry in sorted(entries, key=lambda entry: order_of(entry.method)):
        rows.setdefault(_ident(entry), {})[entry.dataset] = entry
    return {
        "title": str(scope),
        "datasets": datasets,
        "methods": [_method(ident, found, datasets) for ident, found in rows.items()],
        "images": {name: _images(rows, name) for name in datasets},
    }


def _ident(entry: Entry) -> str:
    return f"{entry.method} {entry.budget}" if entry.budget else entry.method


def _method(ident: str, found: dict[str, Entry], datasets: Sequence[str]) -> dict[str, Any]:
    entry = next((e for e in found.values() if e.rows), next(iter(found.values())))
    weight, activation = nominal_bits(entry)
    group = next((g for g, names in GROUPS.items() if entry.method in names), OTHER)
    info = entry.info
    return {
        "id": ident,
        "method": entry.method,
        "title": entry.title + (f" [{entry.budget}]" if entry.budget == "paper" else ""),
        "group": "Ablations of COD-TDQ" if entry.ours and group == OTHER else group,
        "ours": entry.ours,
        "float": entry.method == FLOAT,
        "ranked": entry.ranked and entry.method not in BIT_WIDTHS[:3],
        "bits": "-" if weight is None or activation is None else f"W{weight:g}A{activation:g}",
        "weight": entry.effective_bits("weight"),
        "activation": entry.effective_bits("activation"),
        "ranges": info.get("ranges"),
        "granularity": info.get("granularity"),
        "calibration": entry.calibration_images,
        "gradients": _yes_no(info.get("gradients")),
        "reconstructs": _yes_no(info.get("reconstructs")),
        "evidence": info.get("evidence"),
        "source": info.get("source"),
        "description": info.get("description"),
        "seeds": max((len(e.rows) for e in found.values()), default=0),
        "sqnr": _mean(row.get("diagnosis", {}) for e in found.values() for row in e.rows),
        "failed": sum(len(e.failures) for e in found.values()),
        "scores": {
            metric: [found[d].mean(metric) if d in found else None for d in datasets]
            for metric in METRICS
        },
    }


def _mean(diagnoses: Any) -> float | None:
    """Return the mean SQNR over cells that tell it."""
    known = [d["sqnr_db"] for d in diagnoses if d and d.get("sqnr_db") is not None]
    return statistics.fmean(known) if known else None


def _yes_no(value: object) -> str | None:
    return None if value is None else "yes" if value else "no"


def _images(rows: dict[str, dict[str, Entry]], dataset: str) -> dict[str, Any] | None:
    """Scores per image of the first seed, for methods that saw the same images as FP32."""
    reference = next((f[dataset] for i, f in rows.items() if i == FLOAT and dataset in f), None)
    names = _per_image(reference, "name") if reference else None
    if not names:
        return None
    found = {
        ident: [round(float(s), 4) for s in _per_image(here[dataset], PER_IMAGE) or []]
        for ident, here in rows.items()
        if dataset in here and _per_image(here[dataset], "name") == names
    }
    return {"names": names, "scores": {k: v for k, v in found.items() if len(v) == len(names)}}


def _per_image(entry: Entry, column: str) -> list[Any] | None:
    return (entry.rows[0].get("per_image") or {}).get(column) if entry.rows else None


_SCORES = f"""<div class="controls">
<fieldset class="switch" id="scope"><legend>model</legend></fieldset>
<label>metric<select id="metric"></select></label>
<label>filter by name, bits or granularity
<input type="search" id="score-filter" autocomplete="off"></label>
<label>ranges<select id="score-ranges"></select></label>
<label>group<select id="score-group"></select></label>
<span class="note" id="score-count" role="status"></span></div>
{scrolling_table("score-table", "Scores by method and data set", tall=True)}
<p class="note">Mean: over the data sets, each counting once. Bold: best of the W4A4 methods.
Bits are effective: per value, with all side information.</p>"""

_SPLITS = """<div class="controls"><label>data set<select id="split"></select></label></div>
<div class="legend" id="split-legend"></div><div class="bars" id="bars"></div>
<p class="note">Model, metric and filters are those chosen above. The line marks FP32.</p>"""

_IMAGES = """<div class="controls"><label>method<select id="scatter-method"></select></label></div>
<div class="chart square" id="scatter"></div><div class="legend" id="scatter-legend"></div>
<p class="reading" id="scatter-reading" role="status"></p>
<p class="note">A dot per image, first seed. Below the diagonal: worse than FP32.</p>"""

_METHODS = scrolling_table("method-table", "Properties of methods", tall=True)


def _failures(rows: Sequence[dict[str, Any]]) -> str:
    lines = "".join(
        f"<li><b>{escape(row['method'])}</b> on {escape(row['model'])}, {escape(row['dataset'])}, "
        f"seed {row['seed']}: {escape(row.get('error') or 'no message')}</li>"
        for row in rows
    )
    return f"<ul>{lines}</ul>"


def _provenance(
    scopes: dict[Scope, list[Entry]], results: Results, command: str, source: str
) -> str:
    parts = [command_block(command)]
    if source:
        parts.append(f"<p>Results: {escape(source)}</p>")
    if results.repeated:
        parts.append(
            f"<p>{results.repeated} cells were given more than once with other scores; the last "
            "one counts.</p>"
        )
    for scope, entries in scopes.items():
        lines = "".join(f"<p>{escape(line)}</p>" for line in statement(entries, "Simulated"))
        parts.append(f"<h3>{escape(scope)}</h3>{lines}")
    started = sorted(row["started"] for row in results.rows if row.get("started"))
    if started:
        parts.append(f"<p>Started between {escape(started[0])} and {escape(started[-1])}.</p>")
    return "".join(parts)
