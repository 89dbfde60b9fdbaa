"""Memory that the C library holds on to after it was freed."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def release_memory() -> None:
    """Return freed memory to the system; where the C library has no such call, nothing happens.

    Long work that alternates between large and small tensors leaves holes that nothing else
    fits into: gigabytes, for a network of this kind.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    except (OSError, TypeError):
        return None
    if trim is not None:
        trim.argtypes = [ctypes.c_size_t]
    return trim
