"""Whoever lacks a package is told a command that works, from a checkout as from a wheel."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from codtdq.environment import install_hint

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
NAMES = ("figures", "serve", "score", "hub", "ray", "transformers", "onnx", "gpu", "compare")


@pytest.mark.parametrize("extra", NAMES)
def test_a_hint_names_the_packages_of_the_extra(extra):
    declared = re.search(rf"^{extra} = \[(.*?)\]", PROJECT, re.MULTILINE | re.DOTALL)[1]
    names = re.findall(r"\"([\w-]+)", declared)
    hint = install_hint(extra)
    assert hint.startswith("pip install '")
    assert names and re.findall(r"'([\w-]+)", hint) == names
    assert "codtdq" not in hint  # a name that a registry would have to know


def test_never_installed_it_names_the_extra_of_the_checkout(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_hint("serve") == "pip install '.[serve]'"


def test_nothing_hints_in_another_way():
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    found = [str(path) for path in texts if "install 'codtdq[" in path.read_text(encoding="utf-8")]
    assert found == []
