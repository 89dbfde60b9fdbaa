"""`codtdq table`, as a user types it."""

from functools import partial

import pytest


@pytest.fixture
def run(run):
    """Call `codtdq table`."""
    return partial(run, "table")
