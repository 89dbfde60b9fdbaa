"""One progress line on a terminal, nothing when piped. Nothing else in the package prints.

Drawn by tqdm, which fits the line to the terminal as it is at that moment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
_LINE = "{desc} {percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"
_OPEN_LINE = "{desc} {n_fmt} [{elapsed}]{postfix}"  # of what has no known end


def _bar(**settings: Any) -> Any:
    """A bar of tqdm whose line is never wider than the terminal."""
    from tqdm import tqdm
    from tqdm.utils import disp_trim

    class Bar(tqdm):  # type: ignore[type-arg, misc, unused-ignore]
        monitor_interval = 0  # no thread of its own

        def __str__(self) -> str:
            text, width = super().__str__(), self.format_dict["ncols"]
            return str(disp_trim(text, width - 1)) if width else text

    return Bar(**settings)


class Progress:
    """A counter that redraws one line on stderr, at most ten times a second, and removes it.

    It stays silent unless stderr is a terminal, so piped and `--json` runs are clean.
    """

    def __init__(
        self, label: str, total: int | None = None, *, stream: TextIO | None = None
    ) -> None:
        self.label, self.total, self.count = label, total, 0
        out = sys.stderr if stream is None else stream
        self._bar = _bar(
            desc=label,
            total=total,
            file=out,
            disable=not out.isatty(),
            leave=False,
            dynamic_ncols=True,
            bar_format=_LINE if total else _OPEN_LINE,
        )

    def step(self, n: int = 1, note: str = "") -> None:
        """Advance by n items; `note` is shown behind the counter."""
        self.count += n
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(n)

    def close(self) -> None:
        """Remove the line."""
        self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield from `items`, showing progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(label, total) as bar:
        for item in items:
            yield item
            bar.step()
