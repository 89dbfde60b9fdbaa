"""Faults of a training run: two at once, killed trainers, damaged files, full disks."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from codtdq.errors import CodtdqError, ConfigError
from codtdq.lab.training.engine import run
from codtdq.lab.training.state import RunFolder

pytestmark = pytest.mark.usefixtures("net")


@pytest.mark.fault("a second training run on one folder")
def test_a_second_run_on_one_folder_is_refused(config, tmp_path):
    out = tmp_path / "run"
    run(config, out, stop_at=2)
    rows = (out / "log.jsonl").read_text()
    with (
        RunFolder(out).held(),
        pytest.raises(ConfigError, match="another run is training in") as error,
    ):
        run(config, out, resume=True)
    assert "\n" not in str(error.value)
    assert (out / "log.jsonl").read_text() == rows
    assert run(config, out, resume=True, stop_at=3).step == 3  # free again


STREAM = """
import json, sys, time
from codtdq.lab.training.config import TrainConfig
from codtdq.lab.training.stream import BatchStream
if __name__ == "__main__":
    config = TrainConfig.from_dict(json.loads(sys.argv[1]))
    stream = BatchStream(config, 0, 10_000)
    stream.next()
    print(" ".join(str(p.pid) for p in stream._processes), flush=True)
    time.sleep(600)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.fault("kill -9 of a trainer with two workers: none stays")
def test_workers_end_with_a_killed_trainer(config, tmp_path):
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    settings = json.dumps(dataclasses.replace(config, workers=2).to_dict())
    trainer = subprocess.Popen(
        [sys.executable, str(script), settings], stdout=subprocess.PIPE, text=True
    )
    workers = [int(word) for word in trainer.stdout.readline().split()]
    assert len(workers) == 2 and all(map(alive, workers))
    time.sleep(0.5)  # their queues are full by now: they wait for a reader that will be gone
    trainer.kill()
    trainer.wait()
    for _ in range(100):
        if not any(map(alive, workers)):
            break
        time.sleep(0.1)
    assert not any(map(alive, workers))


def change_state(change):
    def apply(out):
        state = torch.load(out / "state.pt", weights_only=True)
        change(state)
        torch.save(state, out / "state.pt")

    return apply


def cut(name, share):
    def apply(out):
        data = (out / name).read_bytes()
        (out / name).write_bytes(data[: int(len(data) * share)])

    return apply


def text(name, content):
    return lambda out: (out / name).write_bytes(content)


DAMAGES = {
    "state-empty": text("state.pt", b""),
    "state-half": cut("state.pt", 0.5),
    "state-noise": text("state.pt", os.urandom(500)),
    "state-list": lambda out: torch.save([1], out / "state.pt"),
    "state-no-step": change_state(lambda s: s.pop("step")),
    "state-step-text": change_state(lambda s: s.update(step="3")),
    "state-no-model": change_state(lambda s: s.pop("model")),
    "state-model-short": change_state(lambda s: s["model"].popitem()),
    "state-model-text": change_state(lambda s: s.update(model="x")),
    "state-optimizer": change_state(lambda s: s.update(optimizer={})),
    "state-rng": change_state(lambda s: s.update(rng=torch.zeros(3, dtype=torch.uint8))),
    "state-rng-float": change_state(lambda s: s.update(rng=torch.zeros(3))),
    "state-average": change_state(lambda s: s.update(average=None)),
    "state-version": change_state(lambda s: s.update(version=99)),
    "config-empty": text("config.json", b""),
    "config-list": text("config.json", b"[1]"),
    "config-half": cut("config.json", 0.5),
    "config-bytes": text("config.json", b"\xff\xfe\x00"),
    "config-deep": text("config.json", b"[" * 100_000),
    "config-sources": text(
        "config.json", b'{"model":"m","sources":5,"steps":1,"size":1,"loss":"x"}'
    ),
}


@pytest.mark.fault("a damaged file of a training run")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_files_are_one_line(config, tmp_path, damage):
    out = tmp_path / "run"
    run(config, out, stop_at=2)
    damage(out)
    with pytest.raises(CodtdqError) as error:
        run(config, out, resume=True)
    assert "\n" not in str(error.value)


@pytest.mark.fault("a damaged file of a training run")
@pytest.mark.parametrize(
    "line", [b"", b"5\n", b"[1]\n", b'{"a": 1}\n', b'{"step": "x"}\n', b"\xff\xfe\n", b"[" * 10**5]
)
def test_a_damaged_log_loses_its_damaged_lines_only(config, tmp_path, line):
    config = dataclasses.replace(config, log_every=1)
    out = tmp_path / "run"
    run(config, out, stop_at=3)
    rows = RunFolder(out).rows()
    with (out / "log.jsonl").open("ab") as stream:
        stream.write(line)
    run(config, out, resume=True, stop_at=3)
    assert RunFolder(out).rows() == rows


@pytest.mark.fault("a full disk under the state of a training run")
def test_a_full_disk_keeps_the_last_state(config, tmp_path):
    out = tmp_path / "run"
    run(config, out, stop_at=2)
    before = (out / "state.pt").read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limit[1]))
        with pytest.raises(OSError) as error:
            run(config, out, resume=True, stop_at=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert error.value.filename == str(out / "state.pt")  # what the command line prints
    assert (out / "state.pt").read_bytes() == before
    assert run(config, out, resume=True, stop_at=4).step == 4
