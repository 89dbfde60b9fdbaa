"""Columns of text that fit where they are shown."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

GAP = "  "
LEAST = 7  # characters of a column that is made narrower


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Left-aligned columns below their titles.

    width: of the place where they are shown. The widest columns wrap until all fit; where even that
    is too wide, every row becomes a block with a line per title. None: as wide as they are.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in lines) for i in range(len(header))]
    if width is not None:
        narrow = _narrowed(widths, width)
        if narrow is None:
            return _blocks(header, rows, width)
        widths = narrow
    ruled = [lines[0], ["-" * one for one in widths], *lines[1:]]
    return "\n".join(line for row in ruled for line in _wrapped(row, widths))


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None where it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _narrowed(widths: Sequence[int], width: int) -> list[int] | None:
    """Widths that fit, taken from the widest; None where there is too little room."""
    found, room = list(widths), width - len(GAP) * (len(widths) - 1)
    while sum(found) > room:
        widest = max(found)
        if widest <= LEAST:
            return None
        found[found.index(widest)] -= 1
    return found


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of a row; a cell that is too long goes on below itself."""
    cells = [
        [cell]
        if len(cell) <= width
        else textwrap.wrap(cell, width, break_on_hyphens=False, drop_whitespace=True)
        for cell, width in zip(row, widths)
    ]
    height = max(len(cell) for cell in cells)
    return [
        GAP.join(
            (cell[line] if line < len(cell) else "").ljust(width)
            for cell, width in zip(cells, widths)
        ).rstrip()
        for line in range(height)
    ]


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Each row as lines `title  value`, with an empty line between rows."""
    left = max(len(title) for title in header)
    room = max(width - left - len(GAP), LEAST)
    shown = []
    for row in rows:
        lines = [line for cell in zip(header, row) for line in _wrapped(cell, [left, room])]
        shown.append("\n".join(lines))
    return "\n\n".join(shown)
