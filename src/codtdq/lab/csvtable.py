"""Rows as CSV text, and as files that are whole or not there."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codtdq.io import write_text
from codtdq.lab.text import plain


def csv_table(rows: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> str:
    """Return rows as CSV text, a column for every key that any row has; also write it to `path`.

    An empty field is a missing value.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: plain(v) for k, v in row.items()})
    if path is not None:
        write_text(path, out.getvalue())
    return out.getvalue()
