"""Values as strict JSON has them, and errors as one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST_ERROR = 400


def plain(value: Any) -> Any:
    """The same value in JSON types: tuples become lists, what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def one_line(error: BaseException) -> str:
    """Kind and message of an error without line breaks, cut where it becomes a list."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}..."
