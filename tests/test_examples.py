"""The examples run as they stand, and pass a strict type check against the installed package."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codtdq.methods import registry as methods
from codtdq.models import registry as models
from codtdq.schemes.base import InputScheme, WeightScheme

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.fixture
def example(monkeypatch):
    """Load an example by name, as a script would be; what it registers is forgotten afterwards."""
    methods.list_methods()  # built-in ones are loaded once, and must stay
    monkeypatch.setattr(models, "_MODELS", dict(models._MODELS))
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))
    for scheme in (InputScheme, WeightScheme):
        monkeypatch.setattr(scheme, "known", dict(scheme.known))

    def load(name):
        path = next(path for path in EXAMPLES if path.stem == name)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_every_example_is_run_here():
    text = Path(__file__).read_text()
    assert [p.stem for p in EXAMPLES if f'example("{p.stem}")' not in text] == []


def test_both_methods_go_one_way(example, tmp_path):
    scores = example("quantize_and_score").main(tmp_path, images=4)
    assert set(scores) == {"cod-tdq-plus", "repq-vit"}
    assert all(0.5 < score <= 1 for score in scores.values())


def test_a_model_of_one_s_own(example, tmp_path, capsys):
    errors = example("own_model").main(tmp_path)
    assert 0 < errors["cod-tdq-plus"] < errors["cod-tdq"] < 0.3
    assert "mlp.fc1" in capsys.readouterr().out


def test_a_network_is_added(example):
    scores = example("add_network").main()
    assert scores["count"] == 4 and 0 < scores["S"] < 1


def test_a_method_is_added(example):
    scores = example("add_method").main()
    assert scores[1.0] > scores[0.5] > 0


def test_a_scheme_is_added(example, tmp_path):
    assert example("add_scheme").main(tmp_path) == {"bits": 4.5, "difference": 0.0}


def test_maps_are_scored(example, tmp_path, capsys):
    scores = example("score_maps").main(tmp_path)
    assert scores["float"] > scores["w4a4"] and "excludes 0" in capsys.readouterr().out


def test_a_model_is_deployed(example, tmp_path):
    size, share = example("deploy").main(tmp_path)
    assert size < 2_200_000 and 0 < share < 0.9
    assert "camosynth/calib, synthetic" in (tmp_path / "escnet-w4a4/README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_pass_mypy_strict(path, tmp_path):
    pytest.importorskip("mypy")
    shutil.copy(path, tmp_path)  # outside the project: its settings do not apply
    command = [sys.executable, "-m", "mypy", "--strict", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
