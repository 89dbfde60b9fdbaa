"""Plain data to JSON and CSV text, and to files that are whole or not there."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path
from typing import Any

from codtdq.io import write_text


def plain(value: Any) -> Any:
    """Dataclasses to dictionaries, tuples to lists, numbers that do not exist to None."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(rows: list[dict[str, Any]], path: str | Path | None) -> str:
    """CSV text of rows, a column for every key that any row has; also written to `path`."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: plain(v) for k, v in row.items()})
    if path is not None:
        write_text(path, out.getvalue())
    return out.getvalue()
