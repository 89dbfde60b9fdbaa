"""The frame that every page shares: one file, no network, data as JSON inside."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from codtdq.lab.text import plain

DIGITS = 6  # significant ones: enough for a chart, half the bytes
# The page may show what it brings, and can load nothing: browsers enforce it.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
Section = tuple[str, str, str]  # id, title, body


def escape(text: object) -> str:
    """Return text for HTML, attributes included."""
    return html.escape(str(text), quote=True)


def asset(name: str) -> str:
    """Return a file of the `assets` folder."""
    return (resources.files("codtdq.lab.pages") / "assets" / name).read_text(encoding="utf-8")


def embedded(data: Any) -> str:
    """Return JSON that no text inside can end early: every `<` is written as an escape."""
    text = json.dumps(
        plain(data, digits=DIGITS), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return text.replace("<", "\\u003c")


def page(
    title: str, subtitle: str, sections: Sequence[Section], data: Any, scripts: Iterable[str]
) -> str:
    """Return the whole document. Bodies of sections are HTML; titles and subtitle are text."""
    links = "".join(f'<li><a href="#{i}">{escape(name)}</a></li>' for i, name, _ in sections)
    cards = "\n".join(
        f'<section id="{i}" aria-labelledby="{i}-title"><h2 id="{i}-title">{escape(name)}</h2>\n'
        f"{body}\n</section>"
        for i, name, body in sections
    )
    code = "\n".join(asset(name) for name in scripts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#{sections[0][0]}">Skip to the content</a>
<header><h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p></header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
<noscript><p>Tables and charts of this page are drawn by the script inside it; please allow it.
The same numbers are in the files beside this page.</p></noscript>
{cards}
</main>
<footer class="note">Made by codtdq. This file needs no network and no other file.</footer>
<script type="application/json" id="data">{embedded(data)}</script>
<script>
{code}</script>
</body>
</html>
"""


def scrolling_table(ident: str, label: str, *, tall: bool = False) -> str:
    """An empty table for the script, in a box that scrolls for itself and takes the keyboard.

    A line below says so where the table is wider than the box.
    """
    style = "scroll tall" if tall else "scroll"
    return (
        f'<div class="{style}" role="region" tabindex="0" aria-label="{escape(label)}">'
        f'<table id="{ident}"></table></div>'
        '<p class="cue note" hidden>Scroll sideways for more columns \u2192</p>'
    )


def command_block(command: str) -> str:
    """Return the command that made the page, to copy."""
    return (
        '<h3>The command that made this page</h3><pre id="command">'
        f'{escape(command)}</pre><button type="button" id="copy-command">Copy</button>'
    )


def facts(data: Mapping[str, Any]) -> str:
    """Return the nested facts as a list of names and values."""
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in _flat(data))
    return f"<dl>{rows}</dl>"


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield f"{prefix}{key}", str(value)
