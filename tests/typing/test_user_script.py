"""A user's script is checked by mypy --strict against the package as it is installed."""

import ast
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import codtdq

SCRIPT = """
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import codtdq
from codtdq.data import ImageLike, open_dataset


def masks(photo: Path) -> list[NDArray[np.uint8]]:
    names: list[str] = codtdq.list_models()
    model: torch.nn.Module = codtdq.create_model(names[0], pretrained=False)
    settings: codtdq.QuantConfig = codtdq.config("cod-tdq", zero_ratio=0.4)
    print(codtdq.plan(model, settings).totals(), codtdq.CodTdqConfig().tau)
    quantized = codtdq.quantize(model, settings, calibration=[torch.zeros(1, 3, 8, 8)])
    codtdq.use_backend(quantized, "reference")
    codtdq.save(quantized, photo.with_suffix(""))
    restored: torch.nn.Module = codtdq.load(photo.with_suffix(""), backend="cpu")
    scores: dict[str, float] = codtdq.evaluate(restored, open_dataset("camosynth", limit=4)).metrics
    print(scores["S"])
    array, tensor = np.zeros((8, 8, 3)), torch.zeros(3, 8, 8)
    images: list[ImageLike] = [str(photo), photo, Image.open(photo), array, tensor]
    return [codtdq.predict(restored, image) for image in images]


class Mlp(torch.nn.Module):
    quantization = codtdq.Declaration(roles={"fc1": "mlp"})


codtdq.declare(torch.nn.Module(), codtdq.Declaration(token_grid="input"))

try:
    masks(Path("photo.jpg"))
except codtdq.CodtdqError as error:
    print(error)
"""

MISTAKES = """
import codtdq

model = codtdq.create_model("cfrn-small", weights="file")
count: int = codtdq.list_models()
codtdq.predict(model, 3)
codtdq.quantise(model)
codtdq.quantize(model, budget=3)
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """mypy on a script outside the project, with a cache shared by the tests of this file."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("typing")

    def run(text):
        (folder / "script.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "script.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_a_user_script_passes_mypy_strict(check):
    assert "Success: no issues found" in check(SCRIPT)


@pytest.mark.slow
def test_mypy_sees_mistakes_in_a_user_script(check):
    found = check(MISTAKES)
    for message in (
        'Unexpected keyword argument "weights" for "create_model"',
        'expression has type "list[str]", variable has type "int"',
        'Argument 2 to "predict" has incompatible type "int"',
        'Module has no attribute "quantise"',
        'Argument "budget" to "quantize" has incompatible type "int"',
    ):
        assert message in found


def test_the_package_says_that_it_is_typed():
    assert resources.files("codtdq").joinpath("py.typed").is_file()


def test_type_checkers_see_every_export():
    """The names under TYPE_CHECKING are those that are loaded on first use."""
    tree = ast.parse(Path(codtdq.__file__).read_text())
    guards = [node for node in tree.body if isinstance(node, ast.If)]
    (imports,) = [node for node in guards if ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for node in imports.body:
        for alias in node.names:
            assert alias.asname == alias.name, "mypy --strict hides names imported without `as`"
            seen[alias.name] = node.module
    assert {*seen, "__version__"} == set(codtdq.__all__)
    for name, module in seen.items():
        scope = {}
        exec(f"from {module} import {name} as found", scope)
        assert scope["found"] is getattr(codtdq, name)
