"""Aligned plain text in the paper's layout, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from codtdq.lab.tables.layout import Cell, Column, Table
from codtdq.printing import printable

_PLAIN = {"best": ("*", "*"), "second": ("_", "_")}
_ANSI = {"best": ("\033[1m", "\033[0m"), "second": ("\033[4m", "\033[0m")}
_GAP = "  "
_BAR = " | "


def render(table: Table, *, width: int = 140, ansi: bool = False) -> str:
    """Return the table in as many panels as the width asks for; every panel repeats the methods.

    ansi: best bold and second underlined by terminal codes; otherwise *best* and _second_.
    """
    lines = [[_text(cell) for cell in row] for section in table.sections for row in section.lines]
    marked = [
        not ansi and any(row[i].mark for s in table.sections for row in s.lines)
        for i in range(len(table.columns))
    ]
    widths = [
        max(len(column.label) + marked[i], *(len(line[i]) + 2 * marked[i] for line in lines))
        for i, column in enumerate(table.columns)
    ]
    widths = _room_for_groups(table.columns, widths)
    panels = [
        _panel(table, part, widths, marked, ansi) for part in _panels(table.columns, widths, width)
    ]
    wide = max(len(panel[1]) for panel in panels)
    title = textwrap.fill(printable(table.title), max(wide, 60))
    return "\n".join([title, *("\n".join(panel) for panel in panels), *_notes(table, width), ""])


def _text(cell: Cell) -> str:
    """Return what a cell shows, without the marks of best and second."""
    beside = f" ({cell.beside})" if cell.beside else ""
    refs = "".join(f"[{ref}]" for ref in cell.refs)
    return printable(f"{cell.text}{beside}{refs and ' '}{refs}")


def _blocks(columns: Sequence[Column]) -> list[list[int]]:
    """Return the indices of columns after the first, those of one group together."""
    blocks: list[list[int]] = []
    for index, column in enumerate(columns[1:], start=1):
        if blocks and columns[blocks[-1][0]].group == column.group:
            blocks[-1].append(index)
        else:
            blocks.append([index])
    return blocks


def _span(block: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in block) + len(_GAP) * (len(block) - 1)


def _room_for_groups(columns: Sequence[Column], widths: list[int]) -> list[int]:
    """Widen the last column of a group whose head is longer than its columns."""
    for block in _blocks(columns):
        short = len(columns[block[0]].group) - _span(block, widths)
        widths[block[-1]] += max(0, short)
    return widths


def _panels(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[list[list[int]]]:
    """Return the blocks per panel."""
    panels: list[list[list[int]]] = [[]]
    used = widths[0]
    for block in _blocks(columns):
        needed = len(_BAR) + _span(block, widths)
        if panels[-1] and used + needed > width:
            panels.append([])
            used = widths[0]
        panels[-1].append(block)
        used += needed
    return panels


def _panel(
    table: Table, blocks: list[list[int]], widths: list[int], marked: list[bool], ansi: bool
) -> list[str]:
    columns = table.columns

    def joined(parts: Sequence[str]) -> str:
        return _BAR.join(parts).rstrip()

    def line(cells: Sequence[str]) -> str:
        return joined([cells[0], *(_GAP.join(cells[i] for i in block) for block in blocks)])

    heads = [columns[block[0]].group.center(_span(block, widths)) for block in blocks]
    labels = [
        _aligned(" " * m + column.label, column, w) for column, w, m in zip(columns, widths, marked)
    ]
    total = len(joined(["x" * widths[0], *("x" * _span(block, widths) for block in blocks)]))
    out = ["", "=" * total]
    if any(head.strip() for head in heads):
        out.append(joined([" " * widths[0], *heads]))
    out += [line(labels), "-" * total]
    for section in table.sections:
        if section.title:
            out += ["-" * total] if section is not table.sections[0] else []
            out.append(section.title)
        for row in section.lines:
            out.append(
                line(
                    [
                        _cell(cell, column, w, m, ansi)
                        for cell, column, w, m in zip(row, columns, widths, marked)
                    ]
                )
            )
    return [*out, "=" * total]


def _aligned(text: str, column: Column, width: int) -> str:
    # Scores begin alike (.876, .876±.004), so digits meet on the left.
    right = column.number and column.metric is None
    return text.rjust(width) if right else text.ljust(width)


def _cell(cell: Cell, column: Column, width: int, marked: bool, ansi: bool) -> str:
    text = _text(cell)
    before, after = (_ANSI if ansi else _PLAIN).get(cell.mark, ("", ""))
    tail = text[len(cell.text) :]
    if ansi:
        return _aligned(text, column, width).replace(text, f"{before}{cell.text}{after}{tail}", 1)
    if marked:  # digits stay below digits: the place of a mark is kept free
        before = before or " "
    return _aligned(f"{before}{cell.text}{after}{tail}", column, width)


def _notes(table: Table, width: int) -> list[str]:
    lines = [(f"[{key}] ", text) for key, text in table.footnotes.items()]
    lines += [("", note) for note in table.notes]
    return [
        textwrap.fill(text, max(60, width), initial_indent=key, subsequent_indent=" " * len(key))
        for key, text in lines
    ]
