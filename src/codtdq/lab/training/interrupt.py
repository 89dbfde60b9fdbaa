"""Turning Ctrl-C and SIGTERM into a stop at the next step boundary."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """While entered, the first SIGINT or SIGTERM only sets `reason`; a second one acts at once.

    A step is never cut in half, so the state that is saved afterwards is a whole one.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python allows handlers in the main thread only; elsewhere signals keep their meaning
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
