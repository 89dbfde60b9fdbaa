"""Faster twins of reference functions: an engine offers them, the reference asks for them.

The reference never imports an engine. A twin gives the same bits, or None where it does not take
the call; inside `plain()` only the reference runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_twins: dict[str, Callable[..., Any]] = {}
_off = False


def offer(name: str, twin: Callable[..., Any]) -> None:
    """Make a twin known under the name of its reference."""
    _twins[name] = twin


def faster(name: str, *args: Any) -> Any:
    """What the twin of a reference gives for these arguments; None: the reference has to."""
    twin = _twins.get(name)
    return None if twin is None or _off else twin(*args)


def turned_off() -> bool:
    """Whether this is inside of `plain`."""
    return _off


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Run the plain torch path inside: the reference that an engine is compared with."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before
