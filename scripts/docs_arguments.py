"""A griffe extension: arguments in docstrings, `name: what it is`, become a list on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


def listed(text: str) -> str:
    """The docstring with a list item for each line that begins with the name of an argument."""
    lines: list[str] = []
    for line in text.split("\n"):
        argument = ARGUMENT.match(line)
        if argument and lines and lines[-1].strip() and not lines[-1].startswith(("- ", "    ")):
            lines.append("")
        names = argument and ", ".join(f"`{name}`" for name in argument[1].split(", "))
        lines.append(f"- {names}: {line[argument.end() :]}" if argument else line)
    return "\n".join(lines)


class Arguments(griffe.Extension):
    """Rewrites every docstring once it is read."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Take one module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
