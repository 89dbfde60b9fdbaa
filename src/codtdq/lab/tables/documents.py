"""Reading the JSON files of `codtdq bench` kinds other than accuracy: `--out FILE`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codtdq.errors import DataError

SUFFIX = ".json"
MADE_BY = {
    "runtime": "bench latency or bench deployment",
    "storage": "bench storage or bench deployment",
    "weights": "bench weights",
    "operators": "bench operators",
}
Document = dict[str, Any]


@dataclass
class Documents:
    """What the files hold, by the kind of table that shows it; each with its `machine`."""

    runtime: list[Document] = field(default_factory=list)  # a model at one batch and thread count
    storage: list[Document] = field(default_factory=list)  # a model's splits by method
    weights: list[Document] = field(default_factory=list)
    operators: list[Document] = field(default_factory=list)

    def kinds(self) -> list[str]:
        """Return the kinds of table that can be made."""
        return [kind for kind in MADE_BY if getattr(self, kind)]


def is_document(path: str | Path) -> bool:
    """Whether a path names such a file; rows of `bench accuracy` are JSON lines or a folder."""
    return Path(path).suffix == SUFFIX and not Path(path).is_dir()


def read_documents(paths: Sequence[str | Path]) -> Documents:
    """Read files in the order given; one that holds none of these results is an error."""
    found = Documents()
    for path in paths:
        _sort(_read(Path(path)), found, str(path))
    return found


def _read(path: Path) -> Document:
    if not path.exists():
        raise DataError(f"{path}: no such file; give one that `codtdq bench ... --out` wrote")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not JSON; give a file of `codtdq bench ... --out`") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: a JSON {type(data).__name__}; expected the object of a benchmark")
    return data


def _sort(data: Document, found: Documents, path: str) -> None:
    machine = {"machine": data.get("machine") or {}}
    try:
        if data.get("kind") in ("weights", "operators"):
            getattr(found, data["kind"]).append(data)
        elif "splits" in data:
            found.storage.append({**machine, "model": data["model"], "splits": data["splits"]})
        elif "models" in data:
            for part in data["models"]:
                method = part.get("method", "cod-tdq")  # of which details were measured
                found.runtime.append({**machine, **part, "coverage": {method: part["coverage"]}})
                splits = {method: part["storage"]}
                found.storage.append({**machine, "model": part["model"], "splits": splits})
        elif {"model", "input_size", "rows"} <= set(data):
            found.runtime += [{**machine, **part} for part in _cells(data)]
        else:
            raise KeyError("model")
    except (KeyError, TypeError) as error:
        made = ", ".join(f"codtdq {command}" for command in MADE_BY.values())
        raise DataError(f"{path}: not a result of {made} ({error} is missing)") from error


def _cells(data: Document) -> list[Document]:
    """Split rows by what may stand in one table: batch size and thread count."""
    peaks = {
        (row["candidate"], row["batch"], row["threads"]): row["peak_bytes"]
        for row in data.get("processes", ())
    }
    cells: dict[tuple[int, int | None], list[Document]] = {}
    for row in data["rows"]:
        batch, threads = row["batch"], row.get("threads")
        if "skipped" not in row:
            peak = peaks.get((row["candidate"], batch, threads), row.get("peak_bytes"))
            cells.setdefault((batch, threads), []).append({**row, "peak_bytes": peak})
    return [
        {**data, "batch": batch, "threads": threads, "rows": rows}
        for (batch, threads), rows in cells.items()
    ]
