"""The layers of the package stay in order, and importing it stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import codtdq

ROOT = Path(codtdq.__file__).parent

# A package may import itself, those listed, and the shared leaves.
LEAVES = {
    "_version",
    "declarations",
    "environment",
    "errors",
    "importing",
    "io",
    "printing",
    "memory",
    "progress",
}
QUANTIZATION = {"numerics", "schemes", "planning", "operators"}
CORE = {*QUANTIZATION, "methods", "checkpoint", "engine", "models", "data", "metrics", "evaluation"}
ALLOWED = {
    "numerics": set(),
    "schemes": {"numerics"},
    "planning": {"numerics", "schemes"},
    "operators": {"numerics", "schemes", "planning"},
    "engine": QUANTIZATION,
    "checkpoint": QUANTIZATION,
    "methods": QUANTIZATION,
    "models": {"numerics", "weights"},  # weights in 8-bit blocks
    "weights": set(),
    "data": set(),
    "metrics": set(),
    "evaluation": {*QUANTIZATION, "engine", "models", "data", "metrics"},
    "api": CORE,
    "resolve": {*CORE, "api"},
    "sharing": {*CORE, "api"},
    "doctor": {"models", "engine"},
    "cli": {*CORE, "api", "resolve", "doctor", "sharing"},
    "lab": {*CORE, "api", "resolve", "doctor", "cli", "sharing"},
}
# What the laboratory shares with the command line; everything else there is for `codtdq` alone.
OPEN_TO_THE_LAB = "codtdq.cli.common"
REGISTRY = "cli/registry.py"  # the one file that names modules of the laboratory


def modules_of(path):
    """The modules of ours that a file imports, anywhere in it: codtdq.data.folder, ..."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            if node.module == "codtdq":
                yield from (f"codtdq.{alias.name}" for alias in node.names)
            elif (node.module or "").startswith("codtdq."):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("codtdq."))


def imports_of(path):
    return {module.split(".")[1] for module in modules_of(path)}


def files():
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part not in ("__init__", "__main__"):
            yield pytest.param(path, part, id=path.relative_to(ROOT).as_posix())


@pytest.mark.parametrize(("path", "part"), list(files()))
def test_imports_point_down(path, part):
    found = imports_of(path) - LEAVES - {part}
    allowed = set() if part in LEAVES else ALLOWED[part]
    assert found <= allowed, f"{part} must not import {sorted(found - allowed)}"


def test_rules_name_every_package_and_have_no_circle():
    parts = {param.values[1] for param in files()}
    assert parts == {*ALLOWED, *LEAVES}
    left = dict(ALLOWED)
    while left:
        free = {name for name, below in left.items() if not below & left.keys()}
        assert free, f"{sorted(left)} import each other"
        left = {name: below for name, below in left.items() if name not in free}


def test_the_lab_uses_the_shared_part_of_the_command_line_only():
    for path in (ROOT / "lab").rglob("*.py"):
        found = {name for name in modules_of(path) if name.split(".")[1] == "cli"}
        assert found <= {OPEN_TO_THE_LAB}, path
        assert not found or path.parent.name == "commands", path


def test_only_the_registry_names_the_lab():
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "lab") or path == ROOT / REGISTRY:
            continue
        strings = (
            n.value
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        )
        assert not any(text.startswith("codtdq.lab") for text in strings), path


def test_every_registered_command_adds_a_verb():
    from codtdq.cli.registry import COMMANDS

    stored = {
        f"codtdq.lab.commands.{path.stem}"
        for path in (ROOT / "lab" / "commands").glob("*.py")
        if "\ndef register(verbs: Any)" in path.read_text()
    }
    assert stored == {name for name in COMMANDS if name.startswith("codtdq.lab")}


def test_the_help_of_the_command_line_is_light():
    code = (
        "import sys; from codtdq.cli.main import build_parser; build_parser(); "
        "heavy = {'matplotlib', 'ray', 'transformers', 'triton'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_is_light():
    code = (
        "import sys, codtdq; "
        "heavy = {'torch', 'matplotlib', 'numpy', 'scipy', 'PIL', 'safetensors', 'transformers'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); "
        "codtdq.quantize; "
        "bad = {'matplotlib', 'transformers', 'torchvision', 'timm', 'cv2', 'triton'}; "
        "assert not bad & set(sys.modules), bad & set(sys.modules); "
        "import torch; assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_resolves():
    for name in codtdq.__all__:
        assert getattr(codtdq, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        codtdq.nothing
