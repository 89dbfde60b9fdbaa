"""Tables of docs/the-paper.md that `codtdq table` makes of the JSON files of other benchmarks."""

from __future__ import annotations

from pathlib import Path

from codtdq.lab.tables import Results, build_tables, read_documents, render_tables

RESULTS = Path(__file__).parents[1] / "results"


def document_table(kind: str, file: str, model: str, *, with_published: bool = False) -> str:
    """The tables of one model in a file below results/; titles in bold instead of headings."""
    tables = build_tables(
        Results(()),
        kind,
        documents=read_documents([str(RESULTS / file)]),
        with_published=with_published,
    )
    chosen = [table for table in tables if table.records[0]["model"] == model]
    lines = render_tables(chosen, "markdown").rstrip().splitlines()
    titled = (f"**{line[4:]}**" if line.startswith("### ") else line for line in lines)
    return "\n".join(titled) + "\n"
