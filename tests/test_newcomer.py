"""The newcomer's walk knows every command of the README, so that CI fails here within seconds."""

import importlib.util
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("newcomer", ROOT / "scripts" / "newcomer.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "newcomer", module)  # its dataclass looks there
        spec.loader.exec_module(module)
        yield module


def test_every_command_has_something_to_do(script):
    sections = [script.section(README, title) for title in ("Install", "Quick start")]
    lines = [line for text in sections for line in script.commands(text)]
    asked = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    ours = [command for command in asked if command.startswith("codtdq ")]
    unknown = [c for c in ours if not any(c.startswith(known) for known in script.EXPECTED)]
    assert len(ours) > 8 and unknown == []
    unused = [known for known in script.EXPECTED if not any(c.startswith(known) for c in ours)]
    assert unused == []


def test_make_has_the_targets_of_the_readme(script):
    lines = script.commands(script.section(README, "Install"))
    targets = [shlex.split(line)[1] for line in lines if line.startswith("make ")]
    assert targets == ["demo", "test"]
    done = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_ci_walks_by_name():
    assert "make test-newcomer" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
