"""Every operator of the small models decides as recorded, bit for bit, on every processor."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "golden_operators", ROOT / "benchmarks" / "golden_operators.py"
)
recorded = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(recorded)
GOLDEN = json.loads(Path(__file__).with_name("golden_operators.json").read_text())
CELLS = [(model, preset) for model in recorded.MODELS for preset in recorded.PRESETS]


@pytest.mark.parametrize(("model", "preset"), CELLS)
def test_operators_decide_as_recorded(model, preset):
    found = recorded.hashes(model, preset)
    expected = GOLDEN[model][preset]
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
