"""Ctrl-C that waits until a row is on disk."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let a SIGINT that arrives inside the block act at its end: a row is written whole."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    arrived: list[int] = []

    def notice(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    previous = signal.signal(signal.SIGINT, notice)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if arrived:
        signal.raise_signal(signal.SIGINT)
