"""The layers of the package stay in order, and importing it stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import codtdq

ROOT = Path(codtdq.__file__).parent

# A package may import itself, those listed, and the shared leaves.
LEAVES = {"errors", "declarations", "progress", "_version", "environment", "importing", "memory"}
ALLOWED = {
    "native": set(),
    "quantizer": {"native"},
    "planning": {"quantizer"},
    "layers": {"native", "quantizer", "planning"},
    "convert": {"quantizer", "planning", "layers"},
    "gpu": {"native", "quantizer"},
    "backends": {"native", "quantizer", "planning", "layers", "convert", "gpu"},
    "checkpoint": {"quantizer", "planning", "layers", "convert"},
    "models": {"weights"},
    "weights": set(),
    "data": set(),
    "metrics": set(),
    "training": {"models", "data", "metrics"},
    "evaluation": {
        "models",
        "data",
        "metrics",
        "convert",
        "layers",
        "checkpoint",
        "quantizer",
        "backends",
    },
    "report": set(),
    "tables": set(),
    "diagnosis": {
        "convert",
        "data",
        "evaluation",
        "layers",
        "methods",
        "metrics",
        "planning",
        "quantizer",
    },
    "figures": {"diagnosis"},
    "pages": {"diagnosis", "figures", "tables"},
    "methods": {"quantizer", "planning", "layers", "convert", "checkpoint", "models"},
    "api": {
        "backends",
        "quantizer",
        "planning",
        "layers",
        "convert",
        "checkpoint",
        "models",
        "methods",
    },
    "opening": {"methods", "api", "checkpoint", "data", "evaluation", "models", "planning"},
    "demo": {"api", "backends", "bench", "data", "evaluation", "models", "opening", "report"},
    "bench": {
        "api",
        "opening",
        "methods",
        "evaluation",
        "checkpoint",
        "data",
        "models",
        "backends",
        "native",
        "planning",
        "convert",
        "metrics",
        "layers",
        "gpu",
        "quantizer",
    },
    "doctor": {"models", "backends", "native", "gpu"},
    "selection": {
        "quantizer",
        "planning",
        "layers",
        "convert",
        "models",
        "methods",
        "evaluation",
        "diagnosis",
    },
    "cli": None,  # may import everything; nothing may import it
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("codtdq"):
            parts = node.module.split(".")
            if len(parts) > 1:
                yield parts[1]
            else:
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("codtdq."):
                    yield alias.name.split(".")[1]


def files():
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part not in ("__init__", "__main__"):
            yield pytest.param(path, part, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize(("path", "part"), list(files()))
def test_imports_point_down(path, part):
    if part in LEAVES:
        assert set(imports_of(path)) <= LEAVES
        return
    allowed = ALLOWED[part]
    if allowed is None:
        return
    found = set(imports_of(path)) - LEAVES - {part}
    assert found <= allowed, f"{part} must not import {sorted(found - allowed)}"


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
