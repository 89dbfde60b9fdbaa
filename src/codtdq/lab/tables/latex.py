"""LaTeX tables with booktabs, in the paper's layout."""

from __future__ import annotations

import re

from codtdq.lab.tables.layout import Cell, Column, Table

PREAMBLE = "% needs \\usepackage{booktabs} and \\usepackage{graphicx}"
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",
    "]": "{]}",  # a bracket after a line break would be read as its length
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "τ": r"$\tau$",
    "σ": r"$\sigma$",
}


def render(table: Table) -> str:
    """Return a floating table over both columns; notes stand below it."""
    columns, count = table.columns, len(table.columns)
    groups = [_escaped(column.group) for column in columns]
    lines = [
        PREAMBLE,
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{\textbf{{{_escaped(table.title)}.}}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{2.8pt}",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{{_spec(columns)}}}",
        r"\toprule",
    ]
    if any(groups):
        lines += _group_heads(columns)
    lines += [" & ".join(_label(column) for column in columns) + r" \\", r"\midrule"]
    for index, section in enumerate(table.sections):
        if index:
            lines.append(r"\midrule")
        if section.title:
            heading = rf"\multicolumn{{{count}}}{{c}}{{\textit{{{_escaped(section.title)}}}}} \\"
            lines += [heading, r"\midrule"]
        lines += [" & ".join(_cell(cell) for cell in row) + r" \\" for row in section.lines]
    lines += [
        r"\bottomrule",
        r"\end{tabular}%",
        "}",
        r"\par\smallskip",
        r"\begin{minipage}{\linewidth}\footnotesize",
    ]
    notes = [
        rf"\textsuperscript{{{key}}}~{_escaped(text)}" for key, text in table.footnotes.items()
    ]
    notes += [_escaped(note) for note in table.notes]
    lines += [note + r"\par" for note in notes]
    return "\n".join([*lines, r"\end{minipage}", r"\end{table*}", ""])


def _spec(columns: list[Column]) -> str:
    """Return the column types, with a rule before every group."""
    spec, before = "", columns[0].group
    for index, column in enumerate(columns):
        bar = " | " if index == 1 or (index and column.group != before) else ""
        spec += bar + ("c" if column.metric else "r" if column.number else "l")
        before = column.group
    return spec


def _group_heads(columns: list[Column]) -> list[str]:
    heads, rules, start = [], [], 0
    while start < len(columns):
        group, end = columns[start].group, start
        while end < len(columns) and columns[end].group == group:
            end += 1
        if group:
            bar = "|" if end < len(columns) else ""
            head = rf"\textbf{{{_escaped(group)}}}"
            heads.append(rf"\multicolumn{{{end - start}}}{{c{bar}}}{{{head}}}")
            rules.append(rf"\cmidrule(lr){{{start + 1}-{end}}}")
        else:
            heads += [""] * (end - start)
        start = end
    return [" & ".join(heads) + r" \\", " ".join(rules)]


def _label(column: Column) -> str:
    if column.metric is None:
        return _escaped(column.label)
    arrow = r"$\uparrow$" if column.metric.higher else r"$\downarrow$"
    latex = column.metric.latex
    return (latex if latex != column.metric.key else _escaped(latex)) + arrow


def _cell(cell: Cell) -> str:
    text = _number(_escaped(cell.text))
    text = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}"}.get(cell.mark, text)
    beside = rf" ({_number(_escaped(cell.beside))})" if cell.beside else ""
    refs = rf"\textsuperscript{{{','.join(cell.refs)}}}" if cell.refs else ""
    return f"{text}{beside}{refs}"


def _number(text: str) -> str:
    """With a minus sign instead of a hyphen before digits."""
    return re.sub(r"(?<![\w-])-(?=\.?\d)", "$-$", text)


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
