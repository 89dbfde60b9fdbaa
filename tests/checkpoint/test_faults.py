"""What machines do: stops at any moment, full disks, two writers of one folder."""

import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from altering import weights_of

import codtdq
from codtdq import io
from codtdq.checkpoint import files
from codtdq.errors import CheckpointError
from small_nets import images, simulate, small_net

X = images(2, seed=5)


@pytest.fixture(scope="module")
def two():
    """Two models of different methods, and what they give."""
    first = simulate(small_net(), "cod-tdq")
    second = simulate(small_net(seed=1), "smoothquant", calibration=[images(2)])
    with torch.no_grad():
        return (first, first(X)), (second, second(X))


def outputs(path):
    with torch.no_grad():
        return codtdq.load(path, model=small_net(seed=7), backend="reference")(X)


def whole(path, wanted):
    """Whether a folder holds one of some models."""
    found = outputs(path)
    return any(torch.equal(found, each) for each in wanted)


CALLS = ("replace", "unlink", "fsync", "open", "mkdir")


def save_and_die(model, path, at):
    """Save in a child that is gone, without any clean-up, at its at-th change of the folder.

    Returns whether the save came to its end.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    count = 0

    def counted(real):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == at:
                os._exit(9)
            return real(*args, **kwargs)

        return call

    try:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        codtdq.save(model, path)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.fault("a save that ends at its n-th open, fsync, rename or removal, for every n")
@pytest.mark.parametrize("same", [True, False], ids=["same kind", "other kind"])
def test_a_save_that_stops_anywhere_leaves_a_whole_checkpoint(two, tmp_path, same, tally):
    (old, old_output), (other, other_output) = two
    if same:
        with torch.no_grad():
            other = simulate(small_net(seed=3), "cod-tdq")
            other_output = other(X)
    path = codtdq.save(old, tmp_path / "m")
    stops = 0
    for at in range(1, 200):
        codtdq.save(old, path)
        finished = save_and_die(other, path, at)
        found = outputs(path)
        assert torch.equal(found, old_output) or torch.equal(found, other_output), at
        if finished:
            assert torch.equal(found, other_output)
            break
        stops += 1
        tally()
    assert finished and stops >= 8  # every open, fsync, rename and removal was one


def test_what_a_dead_writer_left_is_removed_by_the_next_one(two, tmp_path, monkeypatch):
    (model, wanted), (other, _) = two
    path = codtdq.save(model, tmp_path / "m")
    for at in (3, 5, 7, 9):
        save_and_die(other, path, at)
    left = list(path.glob(".codtdq-*"))
    assert left
    for item in left:  # as if they were of an hour ago
        os.utime(item, (time.time() - 3600,) * 2)
    monkeypatch.setattr(io, "_swept", set())
    codtdq.save(model, path)
    assert sorted(p.name for p in path.iterdir()) == ["codtdq.json", weights_of(path).name]
    assert torch.equal(outputs(path), wanted)


def test_a_temporary_file_of_a_living_writer_stays(tmp_path, monkeypatch):
    with io.atomic_path(tmp_path / "a") as held:
        os.utime(held, (time.time() - 3600,) * 2)
        monkeypatch.setattr(io, "_swept", set())
        io.write_text(tmp_path / "b", "x")
        assert held.exists()


@pytest.mark.fault("a load beside a busy writer")
def test_loads_beside_a_busy_writer_get_one_of_both_models(two, tmp_path, tally):
    (first, one), (second, other) = two
    path = codtdq.save(first, tmp_path / "m")
    stop = threading.Event()

    def write():
        while not stop.is_set():
            codtdq.save(second, path)
            codtdq.save(first, path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [outputs(path) for _ in range(60)]
    finally:
        stop.set()
        writer.join()
    for found in seen:
        tally()
        assert torch.equal(found, one) or torch.equal(found, other)
    assert {bool(torch.equal(found, one)) for found in seen} == {True, False}


def test_a_pointer_that_moved_on_is_followed(two, tmp_path):
    """The header was read; before its tensors are, another model is saved over it."""
    (first, _), (second, _) = two
    path = codtdq.save(first, tmp_path / "net")
    header = files.read_meta(path)
    codtdq.save(second, path)
    assert not (path / header["weights"]).exists()
    found, _ = files.read(path, meta=header)
    assert found["sha256"] == files.read_meta(path)["sha256"] != header["sha256"]


@pytest.mark.fault("a file overwritten or truncated behind a loaded model")
def test_a_loaded_model_does_not_depend_on_its_file(two, tmp_path, tally):
    (model, wanted), _ = two
    path = codtdq.save(model, tmp_path / "m")
    loaded = codtdq.load(path, model=small_net(), backend="reference", cache_weights=False)
    file = weights_of(path)
    with file.open("r+b") as stream:
        stream.write(b"\xff" * file.stat().st_size)
    with torch.no_grad():
        for change in (lambda: None, lambda: os.truncate(file, 0)):
            change()
            tally()
            assert torch.equal(loaded(X), wanted)
    assert "model-" not in Path("/proc/self/maps").read_text()


def test_a_file_exchanged_between_hash_and_parse_is_not_read(two, tmp_path, monkeypatch):
    """The bytes that were hashed are the bytes that the model has."""
    (model, wanted), (other, _) = two
    path = codtdq.save(model, tmp_path / "m")
    file = weights_of(path)
    sound, foreign = file.read_bytes(), weights_of(codtdq.save(other, tmp_path / "o")).read_bytes()
    real = hashlib.sha256

    class Exchanged:
        def __init__(self, data=b""):
            self.digest = real(data)
            self.update = self.digest.update

        def hexdigest(self):
            found = self.digest.hexdigest()
            if found == real(sound).hexdigest():  # whoever opens the file again gets another model
                file.write_bytes(foreign)
            return found

    monkeypatch.setattr(hashlib, "sha256", Exchanged)
    assert torch.equal(outputs(path), wanted)
    assert file.read_bytes() == foreign


@pytest.mark.fault("a save beyond a limit on the size of files, or on a full file system")
@pytest.mark.parametrize("room", [0, 100, 5000, 20000])
def test_a_disk_that_fills_up_is_one_line_and_keeps_the_old_checkpoint(two, tmp_path, room):
    (model, wanted), (other, _) = two
    path = codtdq.save(model, tmp_path / "m")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with pytest.raises(CheckpointError, match=r"cannot write .*: File too large") as error:
            codtdq.save(other, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "\n" not in str(error.value)
    assert torch.equal(outputs(path), wanted)
    assert not list(path.glob(".codtdq-*"))


def test_files_have_the_mode_that_the_umask_allows(two, tmp_path):
    (model, _), _ = two
    before = os.umask(0o077)
    try:
        path = codtdq.save(model, tmp_path / "m")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.iterdir()} == {0o600}


def test_saving_twice_writes_the_tensors_once(two, tmp_path):
    (model, _), _ = two
    path = codtdq.save(model, tmp_path / "m")
    before = weights_of(path).stat().st_ino
    codtdq.save(model, path)
    assert weights_of(path).stat().st_ino == before


def test_a_checkpoint_of_an_older_format_is_replaced_whole(two, tmp_path):
    (model, wanted), _ = two
    path = codtdq.save(model, tmp_path / "m")
    weights_of(path).rename(path / "model.safetensors")
    (path / "codtdq.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(CheckpointError, match="quantize the model again"):
        outputs(path)
    codtdq.save(model, path)
    assert sorted(p.name for p in path.iterdir()) == ["codtdq.json", weights_of(path).name]
    assert torch.equal(outputs(path), wanted)


SAVING = """
import sys, codtdq, torch
sys.path.insert(0, {tests!r})
from small_nets import small_net, simulate
models = [simulate(small_net(seed=s), "cod-tdq") for s in (0, 1)]
codtdq.save(models[0], sys.argv[1])  # who is told that it runs finds a checkpoint
print("ready", flush=True)
while True:
    for model in models:
        codtdq.save(model, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.fault("kill -9 of a process that saves all the time")
def test_kill_at_random_moments(tmp_path, tally):
    """kill -9 of a process that saves all the time: the folder always loads."""
    tests = str(Path(__file__).parents[1])
    models = [simulate(small_net(seed=seed), "cod-tdq") for seed in (0, 1)]
    with torch.no_grad():
        wanted = [model(X) for model in models]
    path, delay = tmp_path / "m", torch.Generator().manual_seed(0)
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVING.format(tests=tests), str(path)], stdout=subprocess.PIPE
        )
        try:
            assert child.stdout.readline() == b"ready\n"
            for _ in range(5):  # several looks at a busy folder, then the end of its writer
                time.sleep(0.02 + 0.2 * float(torch.rand(1, generator=delay)))
                assert whole(path, wanted)
        finally:
            child.kill()
            child.wait()
        tally()
        assert whole(path, wanted)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True
    )
    if made.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.fault("a save beyond a limit on the size of files, or on a full file system")
def test_a_full_disk_keeps_the_old_checkpoint(two, small_disk, tally):
    (model, wanted), (other, _) = two
    path = codtdq.save(model, small_disk / "m")
    tried = 0
    for left in range(0, 40000, 2500):
        filler = small_disk / "filler"
        filler.unlink(missing_ok=True)
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        with filler.open("wb") as stream:
            stream.write(b"\0" * max(0, free - left))
        try:
            codtdq.save(other, path)
            filler.unlink()
            codtdq.save(model, path)
        except CheckpointError as error:
            assert "No space left on device" in str(error) and "\n" not in str(error)
            tried += 1
            tally()
        assert torch.equal(outputs(path), wanted)
    assert tried


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.fault("a load beside two processes that save into one folder")
def test_two_processes_on_one_folder(tmp_path, tally):
    tests = str(Path(__file__).parents[1])
    path = tmp_path / "m"
    command = [sys.executable, "-c", SAVING.format(tests=tests), str(path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    models = [simulate(small_net(seed=seed), "cod-tdq") for seed in (0, 1)]
    with torch.no_grad():
        wanted = [model(X) for model in models]
    try:
        for writer in writers:
            assert writer.stdout.readline() == b"ready\n"
        for _ in range(50):
            tally()
            assert whole(path, wanted)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
