"""Shared by all tests: helper modules can be imported by their plain name; `run`, one browser."""

import os
import sys
from pathlib import Path

import pytest

from fault_tally import pytest_runtest_makereport, tally

__all__ = ["browser", "pytest_runtest_makereport", "run", "tally"]

# Before torch is imported: its float sums depend on its threads, and some tests compare bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here / "quantizer"), str(here / "evaluation")]


@pytest.fixture
def run(capsys):
    """Call `codtdq` in this process: (exit code, what it printed, its errors)."""
    from codtdq.cli import main

    def call(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # argparse
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests of pages; where there is none they are skipped, and say why."""
    import chromium

    if chromium.find() is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(chromium.NAMES)})")
    running = chromium.Chromium()
    yield running
    running.close()
