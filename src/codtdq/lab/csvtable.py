"""Rows as CSV text, and as files that are whole or not there."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codtdq.io import write_text
from codtdq.lab.text import plain

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_table(rows: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> str:
    """Return rows as CSV text, a column for every key that any row has; also write it to `path`.

    An empty field is a missing value. A text that a spreadsheet would run as a formula has a
    quote in front.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writerow({k: _harmless(k) for k in columns})
    for row in rows:
        writer.writerow({k: _harmless(plain(v)) for k, v in row.items()})
    if path is not None:
        write_text(path, out.getvalue())
    return out.getvalue()


def _harmless(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
