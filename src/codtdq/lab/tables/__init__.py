"""Tables and paired statistics of benchmark results, in the layout of the paper."""

from codtdq.lab.tables.build import (
    COLUMNS,
    KINDS,
    STYLES,
    build_tables,
    render_tables,
    tables_to_dict,
)
from codtdq.lab.tables.documents import Documents, is_document, read_documents
from codtdq.lab.tables.layout import Table
from codtdq.lab.tables.published import published
from codtdq.lab.tables.results import Results, read_results

__all__ = [
    "COLUMNS",
    "KINDS",
    "STYLES",
    "Documents",
    "Results",
    "Table",
    "build_tables",
    "is_document",
    "published",
    "read_documents",
    "read_results",
    "render_tables",
    "tables_to_dict",
]
