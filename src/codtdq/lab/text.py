"""Plain data for JSON, names for files, errors as one line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_ERROR = 400


def plain(
    value: Any, *, digits: int | None = None, other: Callable[[Any], Any] | None = None
) -> Any:
    """Return the same value in JSON types: dataclasses become objects, tuples and sets lists.

    Numbers that are not finite become None.
    digits: significant digits of floats; None keeps all.
    other: what to do with a value of another type; without it, it stays as it is.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if value is None or isinstance(value, str | int):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits=digits, other=other) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, digits=digits, other=other) for item in value]
    return value if other is None else other(value)


def safe_name(text: str) -> str:
    """Return a name that is one path component on any file system."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip(".-") or "unnamed"


def one_line(error: BaseException, longest: int = LONGEST_ERROR) -> str:
    """Return kind and message of an error without line breaks, cut where it becomes a list."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    return text if len(text) <= longest else f"{text[:longest]}..."
