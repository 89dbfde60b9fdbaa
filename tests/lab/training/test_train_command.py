from __future__ import annotations

from pathlib import Path

import pytest

from codtdq.lab.training.__main__ import main
from codtdq.lab.training.command import exit_code, summary
from codtdq.lab.training.config import load_config
from codtdq.lab.training.session import TrainResult


def arguments(net: str, pairs_root: Path, out: Path, *more: str) -> list[str]:
    text = f"--model {net} --steps 4 --batch 2 --workers 0 --val-images 0 --holdout 2 --lr 0.01"
    return [*text.split(), "--source", f"pairs:{pairs_root}:2", "--out", str(out), *more]


def test_command_trains_stops_and_resumes(
    net: str, pairs_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(arguments(net, pairs_root, out, "--stop-at", "2")) == 0
    assert "step 2 of 4, stopped by stop_at; continue with --resume" in capsys.readouterr().out
    assert main(arguments(net, pairs_root, out, "--resume")) == 0
    captured = capsys.readouterr()
    assert "step 4 of 4" in captured.out
    assert "pairs-squares: S 0." in captured.out
    assert captured.err == ""  # no progress line when piped


def test_options_for_a_pretrained_network_reach_the_run(
    net: str, pairs_root: Path, tmp_path: Path
) -> None:
    more = ["--frozen", "stem.*", "--frozen", "norm.*", "--slow", "head.*", "--slow-lr", "0.5"]
    out = tmp_path / "run"
    assert main(arguments(net, pairs_root, out, "--bfloat16", *more)) == 0
    saved = load_config(out / "config.json")
    assert saved.frozen == ("stem.*", "norm.*") and saved.slow == ("head.*",)
    assert saved.slow_lr == 0.5 and saved.bfloat16 and saved.encoder is None


def test_user_errors_are_one_line(
    net: str, pairs_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("unknown-net", pairs_root, tmp_path / "a")) == 2
    assert main(arguments(net, tmp_path / "nowhere", tmp_path / "b")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: ") for line in lines)


def test_signals_become_exit_codes() -> None:
    result = TrainResult(out_dir=Path("run"), step=3, steps=9, stopped_by="SIGTERM")
    assert exit_code(result) == 143
    assert "stopped by SIGTERM" in summary(result)
    assert exit_code(TrainResult(out_dir=Path("run"), step=9, steps=9, stopped_by=None)) == 0


def test_model_and_sources_default_to_what_comes_with_the_package(monkeypatch, tmp_path):
    import argparse

    from codtdq.lab.training import command

    seen = {}
    monkeypatch.setattr(command, "train", lambda *args, **kw: seen.update(args=args, **kw))
    parser = argparse.ArgumentParser()
    command.add_train_arguments(parser)
    command.run_train(parser.parse_args(["--out", str(tmp_path)]))
    assert seen["args"][0] == "cfrn-small"
    assert [source.kind for source in seen["sources"]] == ["camosynth", "camosynth-warmup"]
