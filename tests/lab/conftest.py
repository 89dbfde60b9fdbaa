"""One browser for all tests of pages; where there is none they are skipped, and say why."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chromium


@pytest.fixture(scope="session")
def browser():
    if chromium.find() is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(chromium.NAMES)})")
    running = chromium.Chromium()
    yield running
    running.close()
