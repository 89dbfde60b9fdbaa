"""Folders that cannot be written: one line from every command, and models in them still load."""

import subprocess
import sys

import pytest

import codtdq

# The superuser may write anywhere but to a file system that is mounted read-only.


@pytest.fixture(scope="module")
def read_only(tmp_path_factory):
    """A read-only folder that holds a quantized model, an image and a file."""
    place = tmp_path_factory.mktemp("read-only")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True
    )
    if made.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    model = codtdq.quantize(codtdq.create_model("cfrn-small"), "cod-tdq")
    codtdq.save(model, place / "model")
    (place / "taken.json").write_text("{}")
    run("export-synth", "--out", str(place / "images"), "--count", "1")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "codtdq", *arguments], capture_output=True, text=True, timeout=300
    )


COMMANDS = {
    "quantize": ["quantize", "--model", "cfrn-small", "--method", "cod-tdq", "--out", "{}/new"],
    "quantize again": [
        "quantize",
        "--model",
        "cfrn-small",
        "--method",
        "w4a4",
        "--out",
        "{}/model",
    ],
    "predict": ["predict", "--model", "{}/model", "{}/images", "--out", "{}/masks"],
    "eval": [
        *["eval", "--model", "cfrn-small", "--dataset", "camosynth/test-easy", "--limit", "1"],
        *["--out", "{}/eval.json"],
    ],
    "bench": [
        *["bench", "accuracy", "--models", "cfrn-small", "--methods", "fp32", "--limit", "1"],
        *["--out", "{}/bench"],
    ],
    "storage": ["bench", "storage", "--model", "cfrn-small", "--out", "{}/taken.json"],
    "table": ["table", "results/camosynth", "--out", "{}/tables.md"],
    "export-synth": ["export-synth", "--out", "{}/more", "--count", "1"],
}


@pytest.mark.slow
@pytest.mark.fault("a read-only file system under a command that writes")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_so_in_one_line(name, read_only):
    before = sorted(path.name for path in read_only.rglob("*"))
    done = run(*(word.format(read_only) for word in COMMANDS[name]))
    lines = done.stderr.strip().splitlines()
    assert done.returncode in (1, 2), (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr and "Read-only file system" in lines[-1], done.stderr
    assert sorted(path.name for path in read_only.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.fault("a model in a read-only file system")
def test_a_model_in_it_is_used(read_only, tmp_path):
    done = run(
        "predict", "--model", f"{read_only}/model", f"{read_only}/images", "--out", str(tmp_path)
    )
    assert done.returncode == 0 and any(tmp_path.rglob("*.png")), done.stderr
    assert run("verify", f"{read_only}/model").returncode == 0
