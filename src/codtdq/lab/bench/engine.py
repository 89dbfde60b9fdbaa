"""What an engine is, and whom it reports to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from codtdq.lab.bench.cells import Group
from codtdq.lab.bench.settings import RunSettings


class Report(Protocol):
    """Where results go, always called from the thread that runs the engine."""

    def row(self, row: dict[str, Any]) -> None:
        """A cell is finished or has failed."""
        ...

    def running(self, titles: Sequence[str]) -> None:
        """What is being worked on; called often."""
        ...


class Engine(Protocol):
    """What turns groups into rows."""

    def run(
        self, groups: Sequence[Group], settings: RunSettings, images: dict[str, int], report: Report
    ) -> None:
        """Work through all groups. images: length of each data set, by name."""
        ...
