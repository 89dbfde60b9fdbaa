"""Text that came from a file, made safe to show: it cannot move a cursor or change a colour."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format, surrogate, private, separators


def printable(text: str) -> str:
    """The same text with every invisible character written out by its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in _HIDDEN else c for c in text)
