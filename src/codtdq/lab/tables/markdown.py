"""Markdown tables: best bold, second underlined."""

from __future__ import annotations

import re

from codtdq.lab.tables.layout import Cell, Table


def render(table: Table) -> str:
    """Return one pipe table with its notes; a heading of a group is a line of its own."""
    heads = [_escaped(f"{column.group} {column.label}".strip()) for column in table.columns]
    rules = ["---:" if column.number else ":---" for column in table.columns]
    lines = [f"### {_escaped(table.title)}", "", _row(heads), _row(rules)]
    for section in table.sections:
        if section.title:
            lines.append(_row([f"*{_escaped(section.title)}*", *[""] * (len(heads) - 1)]))
        lines += [_row([_cell(cell) for cell in row]) for row in section.lines]
    notes = [f"<sup>{key}</sup> {_escaped(text)}" for key, text in table.footnotes.items()]
    notes += [_escaped(note) for note in table.notes]
    return "\n".join([*lines, "", "<br>\n".join(notes), ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    text = {"best": f"**{text}**", "second": f"<u>{text}</u>"}.get(cell.mark, text)
    beside = f" ({_escaped(cell.beside)})" if cell.beside else ""
    refs = f"<sup>{','.join(cell.refs)}</sup>" if cell.refs else ""
    return f"{text}{beside}{refs}"


def _escaped(text: str) -> str:
    return re.sub(r"([|\\*_<>`\[\]])", r"\\\1", text)
