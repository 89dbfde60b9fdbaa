"""What stands around the code agrees with it: contributing page, hooks, citation, workflows."""

import ast
import importlib
import re
from pathlib import Path

import torch

import codtdq
from codtdq.methods import registry
from codtdq.schemes.base import InputScheme, WeightScheme
from small_nets import images, small_net

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

TARGETS = set(re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.MULTILINE))
SKELETONS = re.findall(r"^```python\n(.*?)^```$", CONTRIBUTING, re.MULTILINE | re.DOTALL)


def test_skeletons_are_python_of_a_length_to_read():
    assert len(SKELETONS) == 5
    for text in SKELETONS:
        compile(text, "CONTRIBUTING.md", "exec")
        assert 10 <= len([line for line in text.splitlines() if line.strip()]) <= 28


def test_skeletons_import_names_that_exist():
    missing = []
    for text in SKELETONS:
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or not node.module.startswith("codtdq"):
                continue
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError:
                missing.append(node.module)
                continue
            names = [alias.name for alias in node.names]
            missing += [f"{node.module}.{name}" for name in names if not hasattr(module, name)]
    assert not missing


def test_skeletons_of_schemes_and_method_quantize_a_model(monkeypatch):
    """Put together as the page says, they run; the model's and the backend's are mere outlines."""
    codtdq.list_methods()  # built-in methods register once, not into what is thrown away here
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(InputScheme, "known", dict(InputScheme.known))
    monkeypatch.setattr(WeightScheme, "known", dict(WeightScheme.known))
    names = {"__name__": "skeleton"}
    for text in SKELETONS[:3]:
        exec(text, names)
    tokens = torch.linspace(-7, 7, 15).expand(1, 2, 15)  # the levels of a 4-bit grid
    inputs = names["RowRange"](4)
    assert torch.allclose(inputs(tokens), tokens) and inputs.bits(32) == 5
    stored = names["RowCodes"]((2, 15), weight=tokens[0])
    assert torch.allclose(stored.dequantize(), tokens[0])
    assert torch.equal(stored.lower().codes[:, 0], tokens[0].to(torch.int8))
    model, batches = small_net(), [images()]
    kept, full = (
        codtdq.quantize(model, codtdq.config("shrunk", shrink=share), calibration=batches)
        for share in (0.5, 1.0)
    )
    site = "mlp.fc1"
    steps = [done.get_submodule(site).input_scheme.step for done in (kept, full)]
    assert torch.allclose(steps[0], 0.5 * steps[1]) and kept.quant_record.name == "shrunk"
    free = codtdq.config("shrunk", weight_bits=None, act_bits=None)
    off = codtdq.quantize(model, free, calibration=batches)
    with torch.no_grad():
        assert torch.allclose(off(images()), model(images()), atol=1e-5)


def test_folders_in_the_import_table_exist():
    table = CONTRIBUTING.split("## Import downwards")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| .+ \|$", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    source = Path(codtdq.__file__).parent
    folders = {path.parent.name for path in source.glob("*/__init__.py")} - {"weights"}
    assert named == folders


def test_named_make_targets_exist():
    texts = [CONTRIBUTING, HOOKS, (ROOT / ".ci" / "run").read_text(encoding="utf-8")]
    texts += [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    commands = r"(?:`|^|run: |entry: )make ([a-z][a-z-]*)"
    named = {target for text in texts for target in re.findall(commands, text, re.MULTILINE)}
    assert {"check", "test", "test-gpu", "test-sanitize"} <= named <= TARGETS


def test_hooks_are_the_parts_of_make_check():
    parts = re.search(r"^check:(.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert parts and re.findall(r"entry: make (\S+)", HOOKS) == parts


def test_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", text, re.MULTILINE)[1] == codtdq.__version__


def test_folders_tested_by_workflows_exist():
    named = {
        folder
        for path in WORKFLOWS
        for folder in re.findall(r"\btests/\w+", path.read_text(encoding="utf-8"))
    }
    assert named and not [folder for folder in named if not (ROOT / folder).is_dir()]


def test_floors_leave_out_versions_that_run_code_of_a_file():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    floors = {"torch": (2, 10), "pillow": (10, 3), "ray": (2, 54), "onnx": (1, 21)}
    for name, floor in floors.items():
        found = re.findall(rf'"{name}>=([\d.]+)"', text)
        assert found, name
        assert all(tuple(map(int, version.split("."))) >= floor for version in found), name


def test_the_lock_file_pins_every_package_by_hash_and_names_no_host():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    form = re.compile(r"[\w.-]+==[\w.+!]+ --hash=sha256:[0-9a-f]{64}")
    assert all(form.fullmatch(line) for line in lines) and "://" not in text
    pinned = {line.partition("==")[0].lower() for line in lines}
    assert {"torch", "numpy", "scipy", "safetensors", "pillow"} <= pinned
