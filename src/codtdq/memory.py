"""Memory that the C library holds on to after it was freed, and the interpreter's garbage."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def garbage_stays() -> Iterator[None]:
    """Search for no garbage meanwhile, where many objects are made that stay.

    They set off searches that find nothing and go through all that torch consists of: a tenth of
    a second each.
    """
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


@cache
def _trim() -> Any:
    try:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    except (OSError, TypeError):
        return None
    if trim is not None:
        trim.argtypes = [ctypes.c_size_t]
    return trim
