"""The tiny model of the evaluation tests, and whether there is an engine to measure."""

from pathlib import Path

import pytest
import tiny_model

from codtdq.engine.cpu import library
from codtdq.lab.bench.speed.subjects import prepared


@pytest.fixture
def engine():
    reason = library.unavailable_reason()
    if reason is not None:
        pytest.skip(f"no native engine: {reason}")


@pytest.fixture
def tiny(engine):
    """FP32, w4a4 and cod-tdq of the tiny model, with files."""
    with prepared(
        tiny_model.NAME, ["w4a4", "cod-tdq"], untrained=True, write_fp32=True
    ) as subjects:
        yield subjects


@pytest.fixture
def tiny_file():
    return Path(tiny_model.__file__)
