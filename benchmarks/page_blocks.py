"""Generated parts of Markdown pages, between `<!-- NAME -->` and `<!-- /NAME -->`.

A page must read well on a code host, which builds nothing, so tables stand in the page. Scripts
that write them take `--check`, and the tests run it: a page that differs from its rows fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

BLOCK = re.compile(r"<!-- ([a-z0-9][a-z0-9 -]*) -->\n.*?<!-- /\1 -->\n", re.DOTALL)


def table(head: list[str], rows: list[list[str]], text_columns: int = 1) -> str:
    """Markdown: the first columns as text, numbers to the right."""
    align = [":---" if column < text_columns else "---:" for column in range(len(head))]
    lines = [head, align, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str, made: Callable[[str], str]) -> str:
    """The page with the blocks that `made` gives for their names."""
    return BLOCK.sub(
        lambda found: f"<!-- {found[1]} -->\n{made(found[1])}<!-- /{found[1]} -->\n", page
    )


def main(title: str, pages: Iterable[Path], made: Callable[[str], str]) -> int:
    """Rewrite the pages, or with `--check` compare them; returns the exit code."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--check", action="store_true", help="fail if a page is not up to date")
    check = parser.parse_args().check
    stale = 0
    for path in pages:
        page = path.read_text(encoding="utf-8")
        new = filled(page, made)
        if new == page:
            continue
        if check:
            print(f"{path} differs from the rows: run python {sys.argv[0]}")
            stale = 1
        else:
            path.write_text(new, encoding="utf-8")
    return stale
