"""What tests of faults tried, and what was lost: rows for docs/security.md.

    CODTDQ_FAULTS=results/faults/runs.jsonl pytest -m "fault" tests

A test that is marked `fault("what happens")` adds a row when it ends: once tried, or as often as it
calls `tally`; a test that fails has lost something. benchmarks/ship_tables.py adds the rows up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TRIED = pytest.StashKey[int]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Call it for every fault that a test brings about."""

    def add() -> None:
        request.node.stash[TRIED] = request.node.stash.get(TRIED, 0) + 1

    return add


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    report = yield
    marker, record = item.get_closest_marker("fault"), os.environ.get("CODTDQ_FAULTS")
    if marker and record and call.when == "call" and not report.skipped:
        row = {
            "fault": marker.args[0],
            "test": item.nodeid,
            "tried": item.stash.get(TRIED, 1),
            "lost": int(report.failed),
        }
        Path(record).parent.mkdir(parents=True, exist_ok=True)
        with Path(record).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return report
