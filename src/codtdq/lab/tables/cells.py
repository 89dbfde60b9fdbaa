"""Cells that several tables share: a method with its mark, a failure with its reason."""

from __future__ import annotations

from codtdq.lab.tables.catalogue import BIT_WIDTHS
from codtdq.lab.tables.entries import Entry
from codtdq.lab.tables.layout import Cell, Footnotes

RELEASED = "released code"


def method_cell(entry: Entry, footnotes: Footnotes, several_budgets: bool = False) -> Cell:
    """Return the title of a method, with the mark of where its code comes from.

    Float and naive references are nobody's method and carry none.
    """
    evidence = entry.info.get("evidence")
    marked = evidence and evidence != RELEASED and entry.method not in BIT_WIDTHS
    title = f"{entry.title} ({entry.budget})" if several_budgets and entry.budget else entry.title
    return Cell(title, refs=(footnotes.letter(f"evidence: {evidence}"),) if marked else ())


def failure_refs(entry: Entry, footnotes: Footnotes) -> tuple[str, ...]:
    """Return the references to what went wrong, for any seed."""
    return tuple(footnotes.number(text) for text in failures(entry))


def failures(entry: Entry) -> list[str]:
    """Return what went wrong, one text per reason."""
    seeds: dict[str, list[str]] = {}
    for row in entry.failures:
        reason = " ".join(str(row.get("error") or "no reason recorded").split())
        seeds.setdefault(reason, []).append(str(row["seed"]))
    return [
        f"{entry.title} on {entry.dataset} failed "
        f"({'seeds' if len(found) > 1 else 'seed'} {', '.join(found)}): {reason}"
        for reason, found in seeds.items()
    ]
