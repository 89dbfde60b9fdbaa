"""Commands that a machine stops: kill -9 and Ctrl-C at random moments, a disk that is full.

By name: `pytest -m slow tests/faults`; CODTDQ_STOPS=N stops each command N times instead of 5.
tests/fault_tally.py says how to record them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from codtdq.errors import CodtdqError
from codtdq.lab.training.state import RunFolder, read_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
STOPS = int(os.environ.get("CODTDQ_STOPS", "5"))


def words(name, out):
    """A command that takes some seconds, and goes on where it was stopped."""
    return {
        "eval": [
            *["eval", "--method", "w4a4", "--dataset", "camosynth/test-easy", "--limit", "12"],
            *["--out", f"{out}/eval.json", "--resume"],
        ],
        "bench": [
            *["bench", "accuracy", "--models", "cfrn-small", "--methods", "fp32,w4a4"],
            *["--dataset", "camosynth/test-easy,camosynth/test-small", "--limit", "3"],
            *["--calibration-images", "2", "--workers", "1", "--out", out, "--resume"],
        ],
        "quantize": [
            *["quantize", "--method", "smoothquant", "--calibration-images", "4"],
            *["--out", f"{out}/model"],
        ],
        "train": [
            *["train", "--steps", "8", "--batch", "2", "--size", "64", "--val-images", "2"],
            *["--val-every", "4", "--save-every", "2", "--log-every", "1", "--workers", "1"],
            *["--threads", "1", "--out", out],
        ],
    }[name]


def result(name, out):
    """What a finished command has written, but times and dates; None if it is not there."""
    if name == "eval":
        if not (out / "eval.json").exists():
            return None
        found = json.loads((out / "eval.json").read_text())
        return found["metrics"], found["per_image"]
    if name == "bench":
        if not (out / "results.jsonl").exists():
            return None
        rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        kept = [
            (r["method"], r["dataset"], r["status"], r["metrics"], r["per_image"]) for r in rows
        ]
        return sorted(kept, key=repr)
    if name == "quantize":
        header = out / "model" / "codtdq.json"
        return json.loads(header.read_text())["sha256"] if header.exists() else None
    try:
        state = read_state(RunFolder(out).state)
    except (CodtdqError, OSError):
        return None
    steps = [row["step"] for row in RunFolder(out).rows() if row["kind"] == "train"]
    return state["step"], steps, {k: v.clone() for k, v in state["model"].items()}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def start(name, out):
    """Begin a command, or go on with it."""
    more = ["--resume"] if name == "train" and RunFolder(out).state.exists() else []
    return subprocess.Popen(
        [sys.executable, "-m", "codtdq", *map(str, words(name, out)), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        # a test run in the background may have Ctrl-C ignored, and its children with it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(name, out):
    process = start(name, out)
    _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said[-2000:]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(result, seconds) of a command that nobody stops."""
    kept = {}

    def get(name):
        if name not in kept:
            out = tmp_path_factory.mktemp(name)
            began = time.monotonic()
            finish(name, out)
            kept[name] = result(name, out), time.monotonic() - began
        return kept[name]

    return get


COMMANDS = ["eval", "bench", "quantize", "train"]


def faults(text):
    """The commands, each with a row of its own in the table of faults."""
    return [pytest.param(name, marks=pytest.mark.fault(text.format(name))) for name in COMMANDS]


def stop(name, how, undisturbed, tmp_path, tally):
    """Stop a command some times; then it ends as if nobody had."""
    wanted, seconds = undisturbed(name)
    draw, out = random.Random(f"{name} {how}"), tmp_path / "out"
    out.mkdir()
    early = 0
    for _ in range(STOPS):
        process = start(name, out)
        time.sleep(draw.uniform(0.1, 1.1) * seconds)
        stopped = process.poll() is None
        if stopped:
            os.killpg(process.pid, how)
        _, said = process.communicate(timeout=60)
        if stopped and how is signal.SIGINT and process.returncode not in (0, -signal.SIGINT):
            # 130 with a line; a signal in the first moments of an interpreter is its own affair
            assert process.returncode == 130 or ("Traceback" in said and "codtdq/cli" not in said)
        if stopped:
            early += 1
            tally()
        else:  # it had come to its end: begin anew
            assert process.returncode == 0, said[-2000:]
            assert same(result(name, out), wanted)
            shutil.rmtree(out)
            out.mkdir()
    finish(name, out)
    assert same(result(name, out), wanted)
    left = [path for path in out.rglob("*") if path.name.startswith(".codtdq-")]
    assert len(left) <= STOPS  # of dead writers; the next one removes them after an hour
    assert name != "bench" or not (out / "state").exists()
    assert early, "every run had come to its end before it was to be stopped"


@pytest.mark.parametrize("name", faults("kill -9 of `{}`, then once more to the end"))
def test_a_killed_command_ends_as_if_it_had_not_been(name, undisturbed, tmp_path, tally):
    stop(name, signal.SIGKILL, undisturbed, tmp_path, tally)


@pytest.mark.parametrize("name", faults("Ctrl-C of `{}`, then once more to the end"))
def test_an_interrupted_command_ends_as_if_it_had_not_been(name, undisturbed, tmp_path, tally):
    stop(name, signal.SIGINT, undisturbed, tmp_path, tally)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 MiB: a trainer writes its next state beside the last one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk, left):
    """Leave so many bytes of a file system."""
    state = os.statvfs(disk)
    (disk / "filler").write_bytes(b"\0" * max(0, state.f_bavail * state.f_frsize - left))


@pytest.mark.parametrize("left", [0, 8192, 65536])
@pytest.mark.parametrize("name", faults("a full disk under `{}`, then room"))
def test_a_full_disk_is_one_line_and_space_mends_it(name, left, small_disk, undisturbed):
    wanted, _ = undisturbed(name)
    out = small_disk / "out"
    out.mkdir()
    fill(small_disk, left)
    process = start(name, out)
    _, said = process.communicate(timeout=900)
    full = process.returncode != 0
    if full:
        lines = [line for line in said.strip().splitlines() if "error" in line.lower()]
        assert "Traceback" not in said and len(lines) == 1, said[-2000:]
        assert "No space left on device" in lines[0]
    (small_disk / "filler").unlink()
    if full:
        finish(name, out)
    assert same(result(name, out), wanted)
