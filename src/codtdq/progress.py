"""One progress line on a terminal, nothing when piped. Nothing else in the package prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TextIO, TypeVar

T = TypeVar("T")


class Progress:
    """A counter that redraws one line on stderr, at most ten times a second.

    It stays silent unless stderr is a terminal, so piped and `--json` runs are clean.
    """

    def __init__(
        self, label: str, total: int | None = None, *, stream: TextIO | None = None
    ) -> None:
        self.label, self.total = label, total
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty()
        self._start = time.monotonic()
        self._drawn = 0.0
        self.count = 0

    def step(self, n: int = 1, note: str = "") -> None:
        """Advance by n items; `note` is shown behind the counter."""
        self.count += n
        now = time.monotonic()
        finished = self.total is not None and self.count >= self.total
        if self._visible and (finished or now - self._drawn >= 0.1):
            self._drawn = now
            self._stream.write("\r\x1b[2K" + self._line(now, note))
            self._stream.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._visible:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _line(self, now: float, note: str) -> str:
        elapsed = now - self._start
        text = f"{self.label} {self.count}"
        if self.total:
            left = elapsed / max(self.count, 1) * (self.total - self.count)
            filled = int(24 * min(self.count / self.total, 1.0))
            text = (
                f"{self.label} [{'#' * filled}{'.' * (24 - filled)}] "
                f"{self.count}/{self.total} {_clock(elapsed)}<{_clock(left)}"
            )
        return f"{text} {note}".rstrip()


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield from `items`, showing progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(label, total) as bar:
        for item in items:
            yield item
            bar.step()


def _clock(seconds: float) -> str:
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes:02d}:{secs:02d}"
