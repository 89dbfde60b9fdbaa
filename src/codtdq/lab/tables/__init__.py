"""Tables and paired statistics of benchmark results, in the layout of the paper."""

from codtdq.lab.tables.build import (
    COLUMNS,
    KINDS,
    STYLES,
    build_tables,
    render_tables,
    tables_to_dict,
)
from codtdq.lab.tables.layout import Table
from codtdq.lab.tables.published import published
from codtdq.lab.tables.results import Results, read_results

__all__ = [
    "COLUMNS",
    "KINDS",
    "STYLES",
    "Results",
    "Table",
    "build_tables",
    "published",
    "read_results",
    "render_tables",
    "tables_to_dict",
]
