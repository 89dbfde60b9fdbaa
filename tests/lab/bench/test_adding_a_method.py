"""The method of docs/adding-a-method.md, taken from the page: it benchmarks, saves and loads."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "adding-a-method.md"


@pytest.fixture
def method_file(tmp_path):
    """mymethod.py as the page shows it."""
    (text,) = re.findall(r'^```python\n("""mymethod\.py.*?)^```$', PAGE.read_text(), re.M | re.S)
    path = tmp_path / "mymethod.py"
    path.write_text(text)
    return path


def run(arguments, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_s_command_benchmarks_it(method_file):
    (command,) = re.findall(r"^\$ codtdq (.+)$", PAGE.read_text().replace("\\\n", " "), re.M)
    words = [*command.split(), "--workers", "1"]
    out = run(["-m", "codtdq", *words], method_file.parent)
    assert "mymethod" in out and "w4a4" in out
    results = method_file.parent / words[words.index("--out") + 1] / "results.jsonl"
    rows = {row["method"]: row for row in map(json.loads, results.read_text().splitlines())}
    assert set(rows) == {"mymethod", "w4a4"}
    mine = rows["mymethod"]
    assert mine["status"] == "ok" and mine["count"] == 2
    assert mine["info"]["title"] == "My method"
    assert mine["config"]["factors"] == [2.0, 3.0, 4.0, 6.0]
    assert 4 < mine["bits"]["activation"] < 6
    assert mine["metrics"]["S"] != rows["w4a4"]["metrics"]["S"]


CHECK = """
import torch
import mymethod
import codtdq
from small_nets import images, simulate, small_net

assert "mymethod" in codtdq.list_methods()
batches = [images(2, 0)]
model = simulate(small_net(), codtdq.config("mymethod", factors=[4.0]), batches)
codtdq.save(model, "saved")
again = codtdq.load("saved", model=small_net(1), backend="reference")
with torch.no_grad():
    assert torch.equal(again(images(2, 3)), model(images(2, 3)))
    free = codtdq.config("mymethod", weight_bits=None, act_bits=None)
    off = simulate(small_net(), free, batches)
    assert torch.allclose(off(images(2, 3)), small_net()(images(2, 3)), atol=1e-5)
print("fine")
"""


def test_it_works_from_python_and_survives_a_file(method_file):
    program = f"import sys; sys.path.insert(0, {str(PAGE.parents[1] / 'tests')!r})\n{CHECK}"
    assert run(["-c", program], method_file.parent).strip() == "fine"


def test_the_page_names_what_exists():
    from codtdq.methods.workbench import Site, Workbench

    names = set(re.findall(r"`bench\.(\w+)", PAGE.read_text()))
    known = {*dir(Workbench), *Workbench.__dataclass_fields__}
    assert {"sites", "install", "graph"} <= names <= known
    (row,) = re.findall(r"^\| `bench\.sites` \| (.+) \|$", PAGE.read_text(), re.M)
    described = set(re.findall(r"`(\w+)(?:\.kind)?`", re.sub(r"\([^)]*\)", "", row)))
    fields = {"name", "kind", "role", "source", "channels", "act_bits", "weight_bits"}
    assert fields | {"float_weight"} <= described
    assert described <= {*dir(Site), *Site.__dataclass_fields__}
