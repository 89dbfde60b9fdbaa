"""Comma-separated records at full precision, one header for all."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from codtdq.lab.tables.layout import Table


def render(tables: Sequence[Table]) -> str:
    """The records of tables of one kind; an empty field is a missing value."""
    records = [record for table in tables for record in table.records]
    fields = list(dict.fromkeys(name for record in records for name in record))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()
