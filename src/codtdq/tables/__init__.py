"""Tables and paired statistics of benchmark results, in the layout of the paper."""

from codtdq.tables.build import COLUMNS, KINDS, STYLES, build_tables, render_tables, tables_to_dict
from codtdq.tables.layout import Table
from codtdq.tables.published import published
from codtdq.tables.results import Results, read_results

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
