"""Whole runs in worker processes: failures, a killed worker, Ctrl-C, resume, the command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codtdq.cli import main
from codtdq.errors import ConfigError
from codtdq.lab.bench import read_results, run_accuracy
from codtdq.lab.bench.cells import row_identity

PLUGIN = Path(__file__).parent / "bench_plugin.py"
SETS = ["camosynth/test-easy", "camosynth/test-small"]


def test_failures_are_rows_and_resume_does_only_what_is_missing(setting, tmp_path, monkeypatch):
    grid = {"methods": ["test-dies", "test-fails", "fp32"], "datasets": SETS, "limit": 2}
    monkeypatch.setenv("BENCH_TEST_BROKEN", "1")
    rows = run_accuracy(tmp_path, **grid, **setting, workers=2)
    by_method = {m: [r for r in rows if r["method"] == m] for m in grid["methods"]}
    assert [len(found) for found in by_method.values()] == [2, 2, 2]
    assert {r["status"] for r in by_method["fp32"]} == {"ok"}
    assert {r["error"] for r in by_method["test-fails"]} == {"RuntimeError: two lines"}
    assert {r["error"] for r in by_method["test-dies"]} == {"worker died (signal 9)"}
    with (tmp_path / "results.jsonl").open("a") as stream:
        stream.write('{"model": "test-be')  # killed while writing

    with pytest.raises(ConfigError, match="add --resume"):
        run_accuracy(tmp_path, **grid, **setting)
    with pytest.raises(ConfigError, match="begun with calibration_images=2, now it is 3"):
        run_accuracy(tmp_path, resume=True, **grid, **{**setting, "calibration_images": 3})

    monkeypatch.delenv("BENCH_TEST_BROKEN")
    again = run_accuracy(tmp_path, resume=True, **grid, **setting, workers=2)
    assert [r["status"] for r in again] == ["ok"] * 6
    assert [r for r in again if r["method"] == "fp32"] == by_method["fp32"]  # not run again
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(lines) == len({row_identity(line) for line in lines}) == 6
    assert not (tmp_path / "state").exists() and not (tmp_path / "cache").exists()


def command(out, *more):
    return [
        sys.executable,
        "-m",
        "codtdq",
        "--import",
        str(PLUGIN),
        "bench",
        "accuracy",
        "--models",
        "test-bench",
        "--untrained",
        "--calibration-images",
        "2",
        "--methods",
        "fp32,w4a4",
        "--dataset",
        ",".join(SETS),
        "--workers",
        "1",
        "--out",
        str(out),
        *more,
    ]


def test_ctrl_c_keeps_finished_rows_and_resume_completes(tmp_path):
    environment = {**os.environ, "BENCH_TEST_SLOW": "0.4", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(tmp_path, "--limit", "24"),
        env=environment,
        start_new_session=True,
        # a test run in the background may have Ctrl-C ignored, and its children with it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    results = tmp_path / "results.jsonl"
    deadline = time.monotonic() + 60
    while not (results.exists() and results.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    stopped = time.monotonic()
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "--resume goes on" in error and "Traceback" not in error
    assert time.monotonic() - stopped < 10
    before = read_results(tmp_path)
    assert 1 <= len(before) < 4 and {row["status"] for row in before} == {"ok"}
    assert list((tmp_path / "state").iterdir())  # the calibrated model waits

    done = subprocess.run(
        command(tmp_path, "--limit", "24", "--resume", "--json"),
        env={**os.environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == len({row_identity(row) for row in rows}) == 4
    assert rows[: len(before)] == before
    assert [row["count"] for row in json.loads(done.stdout)] == [24] * 4
    assert "per_image" not in json.loads(done.stdout)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "cfrn-smal"], "unknown model 'cfrn-smal'; did you mean cfrn-small"),
        (["--methods", "cod-tqd"], "unknown method 'cod-tqd'; did you mean cod-tdq"),
        (["--dataset", "camosynth/test-eazy"], "did you mean 'camosynth/test-easy'"),
        (["--dataset", "NC4K"], "NC4K is read from disk"),
        (["--datasets", "NC4K"], "use --dataset NAME[,NAME]"),
        (["--calibration", "nothing"], "unknown data set 'nothing'"),
        (["--stress", "outlier"], "did you mean outliers"),
        (["--budget", "papers"], "did you mean paper"),
        (["--engine", "rai"], "did you mean ray"),
        (["--limit", "0"], "limit is 0"),
        (["--workers", "0"], "workers is 0"),
        (["--seeds", "0,x"], "expected whole numbers"),
        (["--checkpoint", "x"], "expected MODEL=FILE"),
        (["--checkpoint", "cfrn-small=none.pth"], "no such file"),
        (["--models", "cfrn"], "pass --checkpoint cfrn=FILE"),
        (["--address", "here:1"], "add --engine ray"),
    ],
)
def test_wrong_words_are_one_line_before_anything_runs(arguments, message, tmp_path, capsys):
    out = tmp_path / "out"
    try:
        code = main(["bench", "accuracy", "--methods", "fp32", "--out", str(out), *arguments])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and message in error and error.count("\n") == 1
    assert not out.exists()


def test_two_runs_cannot_share_a_directory(setting, tmp_path):
    from codtdq.lab.bench.directory import run_directory
    from codtdq.lab.bench.settings import RunSettings

    with run_directory(RunSettings(out=str(tmp_path)), resume=False):
        with pytest.raises(ConfigError, match="another run is writing"):
            with run_directory(RunSettings(out=str(tmp_path)), resume=False):
                pass


def test_ray_missing_is_one_line_with_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert (
        main(
            [
                "bench",
                "accuracy",
                "--engine",
                "ray",
                "--methods",
                "fp32",
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 2
    )
    assert "pip install 'ray" in capsys.readouterr().err
