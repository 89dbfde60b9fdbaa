"""From results to tables, and from tables to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codtdq.errors import ConfigError, DataError
from codtdq.lab.tables import csvfile, latex, markdown, text
from codtdq.lab.tables.catalogue import FLOAT
from codtdq.lab.tables.documents import MADE_BY, Documents
from codtdq.lab.tables.entries import Entry, Scope, scopes_of
from codtdq.lab.tables.gain import gain_table
from codtdq.lab.tables.layout import Options, Table, decimal
from codtdq.lab.tables.operators import operators_tables
from codtdq.lab.tables.published import check_comparable, published_entry
from codtdq.lab.tables.results import Results
from codtdq.lab.tables.runtime import runtime_tables
from codtdq.lab.tables.scores import ablation_table, bits_table, escnet_table, main_table
from codtdq.lab.tables.significance import stats_table
from codtdq.lab.tables.storage import storage_table
from codtdq.lab.tables.variants import variants_table
from codtdq.lab.tables.weights import weights_tables

OVERVIEW = ("main", "ablation", "bits", "gain", "stats")  # what "all" makes of benchmark rows
SCORES = (*OVERVIEW, "escnet")  # of rows of `bench accuracy`; main shows ESCNet too
DEFINED = ("variants",)  # of nothing but the package
KINDS = (*SCORES, *MADE_BY, *DEFINED)
STYLES = ("paper", "markdown", "csv", "latex")
# The paper's text calls its F column the max F-measure.
COLUMNS = ("S", "wF", "E_mean", "F_max", "MAE")
DIGITS, ESCNET_DIGITS = 3, 4  # Table S2 has one digit more

_PER_SCOPE = {
    "main": main_table,
    "escnet": escnet_table,
    "ablation": ablation_table,
    "bits": bits_table,
}
_NEEDS = {
    "main": "at least one method that is no ablation",
    "escnet": "rows of escnet or escnet-small",
    "ablation": "a variant such as dstg-only or dcrp-only",
    "bits": "two of fp32, w8a8, w4a8, w4a4",
    "gain": "cod-tdq and a W4A4 baseline on one data set",
    "stats": "a W4A4 baseline and another method on one data set",
    **{kind: f"a .json file of codtdq {command} --out" for kind, command in MADE_BY.items()},
}


def build_tables(
    results: Results,
    kind: str = "all",
    *,
    documents: Documents | None = None,
    metrics: Sequence[str] | None = None,
    digits: int | None = None,
    with_published: bool = False,
) -> list[Table]:
    """Return every table of a kind that the results can fill.

    kind: "all" is every kind of score table that the rows fill but the one of ESCNet alone, and
        what the documents hold.
    documents: results of the other benchmarks, for runtime, storage, weights and operators.
    metrics: columns of score tables, and what paired statistics compare (only S if not given).
    digits: of scores; 3 unless given, 4 in the table of ESCNet.
    with_published: the paper's numbers beside ours; an error unless every row is the paper's
        model on the paper's data.
    """
    documents = documents or Documents()
    if kind not in ("all", *KINDS):
        raise ConfigError(f"table is {kind!r}; accepted: all, {', '.join(KINDS)}")
    kinds = [*(OVERVIEW if results.rows else ()), *documents.kinds()] if kind == "all" else [kind]
    columns = tuple(metrics or COLUMNS)
    if results.rows and set(kinds) & set(SCORES):
        if with_published:
            check_comparable(results.rows)
        _check_metrics(results, columns)
    scopes = scopes_of(results.rows)
    tables = []
    for name in kinds:
        shown = digits or (ESCNET_DIGITS if name == "escnet" else DIGITS)
        options = Options(columns, shown, with_published)
        if name not in SCORES:
            tables += _of_documents(name, documents, options)
            continue
        compared = list(metrics or ("S",)) if kind == "stats" else ["S"]
        found = _tables(name, scopes, options, compared)
        for table in found:
            table.notes += _shared_notes(results, scopes, options, table.kind)
        tables += found
    if not tables:
        wanted = "; ".join(f"{name}: {_NEEDS[name]}" for name in kinds or OVERVIEW)
        raise DataError(f"the results cannot fill this table; needed for {wanted}")
    return tables


def _of_documents(name: str, documents: Documents, options: Options) -> list[Table]:
    """Return tables of what is no score: of documents, or of the package itself."""
    if name in DEFINED:
        return [variants_table(options)]
    if not getattr(documents, name):
        return []
    if name == "storage":
        return [storage_table(documents.storage, options)]
    make = {"runtime": runtime_tables, "weights": weights_tables, "operators": operators_tables}
    return make[name](getattr(documents, name), options)


def render_tables(
    tables: Sequence[Table], style: str = "paper", *, width: int = 140, ansi: bool = False
) -> str:
    """Return all tables in one style, ready to print or to write."""
    if style == "csv":
        if len({table.kind for table in tables}) > 1:
            kinds = ", ".join(dict.fromkeys(table.kind for table in tables))
            raise ConfigError(f"csv holds one kind of table, found {kinds}; choose with --table")
        return csvfile.render(tables)
    if style == "paper":
        return "\n\n".join(text.render(table, width=width, ansi=ansi) for table in tables)
    if style in ("markdown", "latex"):
        render = markdown.render if style == "markdown" else latex.render
        return "\n".join(render(table) for table in tables)
    raise ConfigError(f"style is {style!r}; accepted: {', '.join(STYLES)}")


def tables_to_dict(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """JSON-ready: the records of every table with its title and notes."""
    return [
        {
            "table": table.kind,
            "title": table.title,
            "records": table.records,
            "notes": table.notes,
            "footnotes": table.footnotes,
        }
        for table in tables
    ]


def _tables(
    name: str, scopes: Mapping[Scope, list[Entry]], options: Options, compared: Sequence[str]
) -> list[Table]:
    if name == "gain":
        # A stressed model is another subject: its gains stand in a table of their own.
        stresses = dict.fromkeys(scope.stress for scope in scopes)
        parts = [{s: e for s, e in scopes.items() if s.stress == stress} for stress in stresses]
        found = [gain_table(part, options) for part in parts]
    elif name == "stats":
        found = [
            stats_table(scope, entries, metric, options)
            for scope, entries in scopes.items()
            for metric in compared
        ]
    else:
        found = [_PER_SCOPE[name](scope, entries, options) for scope, entries in scopes.items()]
    return [table for table in found if table is not None]


def _check_metrics(results: Results, columns: Sequence[str]) -> None:
    known = dict.fromkeys(k for r in results.rows if r["status"] == "ok" for k in r["metrics"])
    unknown = [name for name in columns if known and name not in known]
    if unknown:
        raise ConfigError(
            f"metric {', '.join(unknown)} is not in the results; there are {', '.join(known)}"
        )


def _shared_notes(
    results: Results, scopes: Mapping[Scope, list[Entry]], options: Options, kind: str
) -> list[str]:
    notes = []
    limits = dict.fromkeys("all" if s.limit is None else f"at most {s.limit}" for s in scopes)
    if len(limits) > 1:
        notes.append(
            f"The results mix limits ({', '.join(limits)} images per data set); scores on other "
            "images are never compared: each limit has tables of its own."
        )
    if results.repeated:
        notes.append(f"Cells given more than once: {results.repeated}; the last result counts.")
    if options.with_published and kind != "stats":  # the paper has no scores per image
        notes.append("In brackets: the paper's own numbers; its F column is F_max by its own text.")
        notes += _float_gaps(scopes, options.digits)
    return notes


def _float_gaps(scopes: Mapping[Scope, list[Entry]], digits: int) -> list[str]:
    """Whether our float model is the paper's: its score must agree before anything else can."""
    found = []
    for scope, entries in scopes.items():
        for entry in entries:
            paper = published_entry(scope.model, entry.dataset, FLOAT)
            if entry.method == FLOAT and entry.rows and paper:
                gap = entry.mean("S") - paper["S"]
                found.append(f"{scope.model} {entry.dataset} {decimal(gap, digits, sign=True)}")
    if not found:
        return ["No FP32 row of ours: whether the weights are the paper's is not known."]
    return [
        f"FP32, ours minus the paper's, in S: {', '.join(found)}; far from 0 means that the "
        "weights or the images are not the paper's."
    ]
