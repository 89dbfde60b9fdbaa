"""Hooks of mkdocs.yml: draw tables from results/, take in pages and files from outside docs/.

A page is written for two readers: a code host, which shows the file as it is, and the site. So
links lead to files of the repository, and this module turns them: to the page that the file is on
the site, or to a copy of the file. A line `<!-- table results/NAME KIND [METRIC,...] -->` becomes
the table that `codtdq table results/NAME --table KIND --metric METRIC` prints, so that no number is
typed. Formulas, `$x$` and fences of `math`, become MathML, which browsers draw without a script.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {  # pages of the site that stand elsewhere in the repository
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "README.md": "index.md",
}
COPIES = "files"  # folder of the site for whatever else is linked to
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
TABLE = re.compile(r"^<!-- table (\S+) (\S+)(?: (\S+))? -->$", re.MULTILINE)
ITEM = re.compile(r"^( *)([-*]|\d+\.) ")
INLINE_FORMULA = re.compile(r"(`[^`]*`)|\$([^$`\s](?:[^$`]*[^$`\s])?)\$")
FORMULA = "formula{:04d}x"  # stands for one until Markdown is HTML


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, and every file that a page links to, and so on from there."""
    for source, place in PAGES.items():
        if place != "index.md":
            files.append(_generated(config, place, source))
    waiting = [
        (source_of(file.src_uri), file.content_string) for file in files.documentation_pages()
    ]
    while waiting:
        source, text = waiting.pop()
        for _, _, target, _ in LINK.findall(FENCE.sub("", text)):
            found = _found(source, target)
            if found is None or not (ROOT / found).is_file():
                continue
            place = place_of(found)
            if files.get_file_from_path(place) is None:
                files.append(_generated(config, place, found))
                if place.endswith(".md"):
                    waiting.append((found, (ROOT / found).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn a page as it is stored into one for the site."""
    source = source_of(page.file.src_uri)
    markdown = TABLE.sub(lambda match: drawn(match[1], match[2], match[3]), markdown)
    page.meta["formulas"] = formulas = []
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        prose = _prose(markdown[end : fence.start()], source, page.file.src_uri)
        parts += [_without_formulas(prose, formulas), _shown(fence[0], formulas)]
        end = fence.end()
    rest = _prose(markdown[end:], source, page.file.src_uri)
    return "".join([*parts, _without_formulas(rest, formulas)])


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Put the formulas in."""
    for number, formula in enumerate(page.meta["formulas"]):
        html = html.replace(FORMULA.format(number), formula, 1)
    return html


def source_of(place: str) -> str:
    """Where a page of the site stands in the repository."""
    if place.startswith(f"{COPIES}/"):
        return place.removeprefix(f"{COPIES}/")
    return next((old for old, new in PAGES.items() if new == place != "index.md"), f"docs/{place}")


def place_of(source: str) -> str:
    """Where a file of the repository stands on the site."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    hidden = source.replace("/.", "/_").lstrip(".")  # mkdocs leaves dot files out
    return f"{COPIES}/{hidden}"


def drawn(folder: str, kind: str, metrics: str | None) -> str:
    """A table of results as Markdown."""
    from codtdq.lab.tables import build_tables, read_results, render_tables

    rows = read_results([ROOT / folder])
    tables = build_tables(rows, kind, metrics=metrics.split(",") if metrics else None)
    return str(render_tables(tables, "markdown"))


def mathml(latex: str, display: str) -> str:
    """A formula for browsers. display: inline or block."""
    from latex2mathml.converter import convert

    return str(convert(" ".join(latex.split()), display=display))


def _shown(fence: str, formulas: list[str]) -> str:
    """A fence as it is, or the place of its formula."""
    if not fence.startswith("```math\n"):
        return fence
    formulas.append(mathml(fence.removeprefix("```math\n").removesuffix("```"), "block"))
    return f"\n{FORMULA.format(len(formulas) - 1)}\n"


def _without_formulas(text: str, formulas: list[str]) -> str:
    """Text with places for its formulas, so that Markdown finds no marks of its own in them."""

    def place(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]  # code
        formulas.append(mathml(match[2], "inline"))
        return FORMULA.format(len(formulas) - 1)

    return INLINE_FORMULA.sub(place, text)


def _generated(config: Any, place: str, source: str) -> File:
    path = ROOT / source
    content: str | bytes
    content = path.read_text(encoding="utf-8") if place.endswith(".md") else path.read_bytes()
    return File.generated(config, place, content=content)


def _found(source: str, target: str) -> str | None:
    """The path in the repository that a link of a file means; None: it leads elsewhere."""
    if not target or re.match(r"[a-z]+:", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if (ROOT / path).exists() else None


def _prose(text: str, source: str, place: str) -> str:
    """Links that hold on the site, and lists as Python's Markdown wants them."""

    def turned(match: re.Match[str]) -> str:
        picture, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        found = _found(source, target)
        if found is None:
            return match[0]
        if not (ROOT / found).is_file():
            return label  # a folder: the site has no listing of it
        goal = posixpath.relpath(place_of(found), posixpath.dirname(place) or ".")
        return f"{picture}[{label}]({goal}{anchor})"

    lines: list[str] = []
    for line in LINK.sub(turned, text).split("\n"):
        item = ITEM.match(line)
        if item and lines and lines[-1].strip() and not _in_list(lines):
            lines.append("")
        lines.append(" " * len(item[1]) + line if item and 0 < len(item[1]) < 4 else line)
    return "\n".join(lines)


def _in_list(lines: list[str]) -> bool:
    """Whether the paragraph that ends here is part of a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if ITEM.match(line):
            return True
    return False
