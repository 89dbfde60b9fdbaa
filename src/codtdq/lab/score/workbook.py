"""Scores as an Excel workbook: means, paired differences, and a sheet of images per data set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codtdq.environment import install_hint
from codtdq.errors import UnsupportedError
from codtdq.io import atomic_path
from codtdq.lab.score.run import Scored
from codtdq.lab.score.tables import per_image_records
from codtdq.lab.tables.layout import Table

LONGEST_TITLE = 31  # that a sheet may have


def require_openpyxl() -> None:
    """Say in one line what to install."""
    try:
        import openpyxl  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            f"--xlsx needs openpyxl, which is not installed; run {install_hint('score')}, "
            "or take the .csv files"
        ) from error


def write_workbook(path: Path, scored: Scored, tables: Sequence[Table]) -> None:
    """Write the records of tables and all images, numbers as numbers."""
    require_openpyxl()
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for table in tables:
        _fill(book, table.kind, table.records)
    rows = per_image_records(scored)
    for dataset in scored.datasets:
        here = [row for row in rows if row["dataset"] == dataset]
        _fill(book, dataset, [{k: v for k, v in row.items() if k != "dataset"} for row in here])
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        book.save(file)


def _fill(book: Any, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from openpyxl.styles import Font

    # characters that Excel refuses; it makes a taken title unique by itself
    sheet = book.create_sheet(re.sub(r"[\[\]:*?/\\]", "_", title)[:LONGEST_TITLE])
    columns = list(dict.fromkeys(key for row in rows for key in row))
    sheet.append(columns)
    for row in rows:
        sheet.append([row.get(key) for key in columns])
    for cell in sheet[1]:
        cell.font = Font(bold=True)
    sheet.freeze_panes = "B2"
    for column, key in zip(sheet.columns, columns):
        texts = [len(str(cell.value)) for cell in column if isinstance(cell.value, str)]
        sheet.column_dimensions[column[0].column_letter].width = min(
            60, max([len(key), *texts]) + 2
        )
