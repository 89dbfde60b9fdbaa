"""The examples run as they stand, and pass a strict type check against the installed package."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


def test_both_methods_go_one_way(tmp_path):
    path = next(path for path in EXAMPLES if path.stem == "quantize_and_score")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    scores = example.main(tmp_path, images=4)
    assert set(scores) == {"cod-tdq-plus", "repq-vit"}
    assert all(0.5 < score <= 1 for score in scores.values())


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_pass_mypy_strict(path, tmp_path):
    pytest.importorskip("mypy")
    shutil.copy(path, tmp_path)  # outside the project: its settings do not apply
    command = [sys.executable, "-m", "mypy", "--strict", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
