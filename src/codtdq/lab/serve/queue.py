"""One worker thread behind a bounded queue: requests run one after another, or are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """As many requests wait as may wait."""


class Overdue(Exception):
    """The answer did not come in time; a request that still waited was taken off the queue."""


class Queue:
    """Runs functions in one thread, in the order of their coming.

    One thread, because a network uses every core by itself: two at a time would finish no earlier
    and need twice the memory.
    """

    def __init__(self, waiting: int) -> None:
        self._places = waiting + 1  # one runs
        self._taken = 0
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codtdq-serve")

    @property
    def taken(self) -> int:
        """Requests that run or wait."""
        return self._taken

    async def run(self, function: Callable[..., T], *arguments: Any, seconds: float) -> T:
        """Wait for a turn and for the result; `Busy` at once if the queue is full."""
        with self._lock:
            if self._taken >= self._places:
                raise Busy
            self._taken += 1
        future = self._thread.submit(function, *arguments)
        future.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except asyncio.TimeoutError:
            raise Overdue from None

    def _leave(self, future: Future[Any]) -> None:
        with self._lock:
            self._taken -= 1

    def close(self) -> None:
        """Drop what waits, and let what runs finish."""
        self._thread.shutdown(wait=True, cancel_futures=True)
