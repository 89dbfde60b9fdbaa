"""Reading results.jsonl: one finished cell per line, checked before anything is made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codtdq.errors import DataError

FILE_NAME = "results.jsonl"
Row = dict[str, Any]

_IDENTITY = ("model", "method", "dataset", "seed", "stress", "budget", "limit")
_FIELDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "method": (str,),
    "dataset": (str,),
    "seed": (int,),
    "stress": (str, type(None)),
    "budget": (str, type(None)),
    "limit": (int, type(None)),
    "status": (str,),
}
_OK_FIELDS: dict[str, tuple[type, ...]] = {
    "count": (int,),
    "metrics": (dict,),
    "bits": (dict, type(None)),
    "info": (dict,),
}


@dataclass(frozen=True)
class Results:
    """The cells of one or more runs, each once.

    repeated: cells that were given more than once with other scores; the last one counts.
    """

    rows: tuple[Row, ...]
    repeated: int = 0


def read_results(paths: Sequence[str | Path]) -> Results:
    """Read files, or folders of runs, in the order given.

    A cell that comes again replaces the earlier one, except that a failure never replaces a
    result. The budget of steps is dropped from methods that take none, so that the same float
    reference of two runs is one row.
    """
    rows = [row for path in paths for row in _read_file(_file_of(Path(path)))]
    infos = {row["method"]: row["info"] for row in rows if row.get("info")}
    cells: dict[tuple[Any, ...], Row] = {}
    repeated = 0
    for row in rows:
        row["info"] = row.get("info") or infos.get(row["method"])  # a failed cell brings none
        if (row["info"] or {}).get("reconstructs") is False:
            row["budget"] = None
        key = tuple(row[name] for name in _IDENTITY)
        old = cells.get(key)
        if old is not None and old["status"] == "ok":
            if row["status"] != "ok":
                continue
            repeated += old["metrics"] != row["metrics"]
        cells[key] = row
    return Results(tuple(cells.values()), repeated)


def _file_of(path: Path) -> Path:
    if path.is_dir():
        path = path / FILE_NAME
        if not path.is_file():
            raise DataError(
                f"{path.parent}: no {FILE_NAME} in this folder; give the folder of a run"
            )
    elif not path.exists():
        raise DataError(f"{path}: no such file; give a {FILE_NAME} or the folder of a run")
    return path


def _read_file(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file ({error.reason}); expected JSON lines") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            rows.append(_checked(_parsed(line, f"{path}:{number}"), f"{path}:{number}"))
    if not rows:
        raise DataError(f"{path}: empty; expected one JSON object per finished cell")
    return rows


def _parsed(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON ({error.msg}); remove the line if a run was cut off there"
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON {type(row).__name__}; expected one object per cell")
    return row


def _checked(row: Row, where: str) -> Row:
    if row.get("status") not in ("ok", "error"):
        raise DataError(f"{where}: status is {row.get('status')!r}; accepted: ok, error")
    fields = {**_FIELDS, **(_OK_FIELDS if row["status"] == "ok" else {})}
    missing = [name for name in fields if name not in row]
    if missing:
        raise DataError(
            f"{where}: no {', '.join(missing)} in this row; not a result of a benchmark"
        )
    for name, types in fields.items():
        if not isinstance(row[name], types) or isinstance(row[name], bool):
            expected = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            raise DataError(f"{where}: {name} is {row[name]!r:.40}; expected {expected}")
    for name, value in row["metrics"].items() if row["status"] == "ok" else ():
        if value is not None and not isinstance(value, (int, float)):
            raise DataError(f"{where}: metrics.{name} is {value!r:.40}; expected a number")
    return row
