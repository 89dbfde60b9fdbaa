"""The layers of the package stay in order, and importing it stays light."""

import ast
import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

import codtdq

ROOT = Path(codtdq.__file__).parent
LIGHT_VERBS = (
    *("demo", "list", "plan", "doctor", "quantize", "eval"),
    *("predict", "export", "bench", "table"),
)

# A package may import itself, those listed, and the shared leaves.
LEAVES = {
    "_version",
    "budgets",
    "columns",
    "declarations",
    "environment",
    "errors",
    "imagefile",
    "importing",
    "io",
    "native",
    "pixels",
    "printing",
    "memory",
    "progress",
    "signature",
    "tensorfile",
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
    "exporting": {*CORE, "runtime"},  # to open what it wrote
    "runtime": set(),  # and of the leaves those without torch: it is installed alone
    "api": {*CORE, "exporting"},
    "resolve": {*CORE, "api"},
    "sharing": {*CORE, "api"},
    "doctor": {"models", "engine"},
    "cli": {*CORE, "api", "resolve", "doctor", "exporting", "sharing"},
    "lab": {*CORE, "api", "resolve", "doctor", "cli", "exporting", "runtime", "sharing"},
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
    from codtdq.cli.main import build_parser
    from codtdq.cli.registry import COMMANDS

    for folder, package in (("cli", "codtdq.cli"), ("lab/commands", "codtdq.lab.commands")):
        stored = {
            f"{package}.{path.stem}"
            for path in (ROOT / folder).glob("*.py")
            if "\ndef configure" in path.read_text()
        }
        assert stored == {c.module for c in COMMANDS if c.module.startswith(package)}
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stop, contextlib.redirect_stdout(io.StringIO()) as shown:
            build_parser().parse_args([command.name, "--help"])
        assert stop.value.code == 0 and command.help[1:] in " ".join(shown.getvalue().split())


@pytest.mark.parametrize(
    "argv",
    [["--version"], ["--help"], *([verb, "--help"] for verb in LIGHT_VERBS), ["evall"]],
    ids=" ".join,
)
def test_the_help_of_the_command_line_is_light(argv):
    """What needs no tensor loads no torch: version and help are there at once."""
    code = (
        "import sys; from codtdq.cli import main\n"
        f"try: main({argv})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'scipy', 'matplotlib', 'ray', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


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
