"""A training says nothing but what it reports, and says in one line what it cannot do."""

import subprocess
import sys

WORDS = ["train", "--model", "escnet-small", "--source", "camosynth-warmup", "--steps", "1"]
WORDS += ["--warmup", "0", "--val-images", "1", "--workers", "0"]


def train(tmp_path, *more):
    command = [sys.executable, "-m", "codtdq", *WORDS, *more, "--out", str(tmp_path / "run")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_no_warning_reaches_the_terminal(tmp_path):
    done = train(tmp_path, "--batch", "2", "--size", "64")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_batch_too_small_for_batch_norms_is_one_line(tmp_path):
    done = train(tmp_path, "--batch", "1", "--size", "32")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a batch of 1 at size 32" in done.stderr
