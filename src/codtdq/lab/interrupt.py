"""Ctrl-C that waits for the end of a step or of a row, so that nothing is left half done."""

from __future__ import annotations

import os
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
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the process at once, inside of a call that does not come back.

    Python runs no handler while native code waits, whoever set it; what the C library sees of a
    signal is written to a pipe all the same, and a thread reads that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(target=_end_at_signal, args=(reader,), daemon=True)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        watcher.join()


def _end_at_signal(reader: int) -> None:
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            if number[0] in (signal.SIGTERM, signal.SIGINT):
                os._exit(128 + number[0])


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold a SIGINT back until the end of the block; processes that start in it never see one
    before they allow it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let a SIGINT that arrives inside the block act at its end: a row is written whole."""
    with StopRequest((signal.SIGINT,), impatient=False) as request:
        yield
    if request.reason is not None:
        signal.raise_signal(signal.SIGINT)
