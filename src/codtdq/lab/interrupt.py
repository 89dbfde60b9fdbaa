"""Ctrl-C that waits for the end of a step or of a row, so that nothing is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """While entered, a signal only sets `reason`; the caller stops where it is safe.

    impatient: a second signal acts at once, for blocks that take long.
    """

    def __init__(
        self,
        signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM),
        *,
        impatient: bool = True,
    ) -> None:
        self.reason: str | None = None
        self._signals, self._impatient = signals, impatient
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python allows handlers in the main thread only; elsewhere signals keep their meaning
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._previous[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
        if self._impatient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let a SIGINT that arrives inside the block act at its end: a row is written whole."""
    with StopRequest((signal.SIGINT,), impatient=False) as request:
        yield
    if request.reason is not None:
        signal.raise_signal(signal.SIGINT)
