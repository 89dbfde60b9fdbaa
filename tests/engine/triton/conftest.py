"""What both folders share."""

import sys
from pathlib import Path

import pytest

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parents[2] / "benchmarks")]  # gpu_cases, quick_interpreter


def power(value):
    return 1 << max(value - 1, 0).bit_length()


@pytest.fixture
def shape_sized_blocks(monkeypatch):
    """One program per operator, as far as it goes: the interpreter takes its time per program."""
    from codtdq.engine.triton import tables

    def block(table, rows, outputs):
        # Triton's tiles end at 2^20 values
        m, n = min(max(power(rows), 16), 4096), min(max(power(outputs), 16), 256)
        return tables.Block(m, n, slabs=8)

    monkeypatch.setattr(tables, "block_for", block)


@pytest.fixture
def quick():
    """The interpreter with the same numbers in a fraction of the time, for whole networks."""
    from quick_interpreter import quick_interpreter

    with quick_interpreter():
        yield
