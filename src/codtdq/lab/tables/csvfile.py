"""Comma-separated records at full precision, one header for all."""

from __future__ import annotations

from collections.abc import Sequence

from codtdq.lab.csvtable import csv_table
from codtdq.lab.tables.layout import Table


def render(tables: Sequence[Table]) -> str:
    """Return the records of tables of one kind; an empty field is a missing value."""
    return csv_table([record for table in tables for record in table.records])
