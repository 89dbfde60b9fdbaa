"""Faults of a benchmark: damaged files of an interrupted run, leftovers of a killed one."""

import json
import resource
import signal

import pytest

from codtdq.errors import CodtdqError, ConfigError, DataError
from codtdq.lab.bench import run_accuracy
from codtdq.lab.bench.shard import _read_part
from codtdq.metrics import MetricSuite

GRID = {"methods": ["fp32"], "datasets": ["camosynth/test-easy"], "limit": 2, "workers": 1}


@pytest.mark.fault("a damaged file of a benchmark")
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"5", b"\xff\xfe", b"[" * 10**5])
def test_a_damaged_run_file_is_one_line(setting, tmp_path, content):
    run_accuracy(tmp_path, **GRID, **setting)
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.json is damaged; delete it") as error:
        run_accuracy(tmp_path, resume=True, **GRID, **setting)
    assert "\n" not in str(error.value)
    (tmp_path / "run.json").unlink()
    assert run_accuracy(tmp_path, resume=True, **GRID, **setting)[0]["status"] == "ok"


@pytest.mark.fault("a full disk under the run file of a benchmark")
def test_a_full_disk_leaves_a_whole_run_file(setting, tmp_path):
    """Or none: never one of 0 bytes, which would stop every later run in the folder."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
        with pytest.raises((OSError, CodtdqError), match="File too large"):
            run_accuracy(tmp_path, **GRID, **setting)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not (tmp_path / "run.json").exists() and not list(tmp_path.glob(".codtdq-*"))
    assert run_accuracy(tmp_path, **GRID, **setting)[0]["status"] == "ok"


@pytest.mark.fault("a damaged file of a benchmark")
@pytest.mark.parametrize("content", [b"5\n", b'{"a": 1}\n', b"\xff\n", b"[" * 10**5 + b"\n"])
def test_a_damaged_row_is_one_line(setting, tmp_path, content):
    run_accuracy(tmp_path, **GRID, **setting)
    with (tmp_path / "results.jsonl").open("ab") as stream:
        stream.write(content)
    with pytest.raises(CodtdqError, match=r"line 2 .*delete that line") as error:
        run_accuracy(tmp_path, resume=True, **GRID, **setting)
    assert "\n" not in str(error.value)


@pytest.mark.fault("a benchmark killed after its last row")
def test_what_a_run_left_that_was_killed_after_its_last_row_is_removed(setting, tmp_path):
    run_accuracy(tmp_path, **GRID, **setting)
    left = tmp_path / "state" / "test-bench__fp32__seed0__plain__fast"
    left.mkdir(parents=True)
    (left / "facts.json").write_text("{}")
    run_accuracy(tmp_path, resume=True, **GRID, **setting)
    assert not (tmp_path / "state").exists()


@pytest.mark.fault("a damaged file of a benchmark")
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"suite": 5}', b'{"suite": {"format": 1, "per_image": 5}}', b"\xff"],
)
def test_a_damaged_part_is_one_line(tmp_path, content):
    (tmp_path / "part.json").write_bytes(content)
    with pytest.raises(DataError, match="delete it to score its images again"):
        _read_part(tmp_path / "part.json")


def test_a_whole_part_is_read(tmp_path):
    part = {"suite": MetricSuite().state_dict(), "wall": 1.0}
    (tmp_path / "part.json").write_text(json.dumps(part))
    assert _read_part(tmp_path / "part.json") == part
