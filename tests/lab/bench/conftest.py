"""The plug-in of these tests, known to this process for the length of a test."""

import sys
from pathlib import Path

import pytest

from codtdq.importing import import_file
from codtdq.lab.bench import shard
from codtdq.methods import registry as methods
from codtdq.models import registry as models

PLUGIN = Path(__file__).parent / "bench_plugin.py"
SETTING = {
    "models": ["test-bench"],
    "untrained": True,
    "calibration_images": 2,
    "imports": [PLUGIN],
}


@pytest.fixture
def plugin(monkeypatch):
    methods.list_methods()
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))
    monkeypatch.setattr(models, "_MODELS", dict(models._MODELS))
    monkeypatch.setattr(shard, "SHARD_IMAGES", shard.SHARD_IMAGES)
    import_file(str(PLUGIN))
    yield PLUGIN
    sys.modules.pop(PLUGIN.stem, None)


@pytest.fixture
def setting(plugin):
    """Keywords of run_accuracy for a run that takes no time."""
    return dict(SETTING)
