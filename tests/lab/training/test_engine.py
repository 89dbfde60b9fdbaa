from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from codtdq.errors import CheckpointError, ConfigError
from codtdq.lab.training import SourceSpec, TrainConfig, run, train
from codtdq.lab.training import session as session_module
from codtdq.lab.training.state import RunFolder, read_state

pytestmark = pytest.mark.usefixtures("net")


def leaves(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    else:
        return {path: value}
    found: dict[str, object] = {}
    for key, item in pairs:
        found |= leaves(item, f"{path}.{key}")
    return found


def assert_same_state(first: Path, second: Path) -> None:
    one, two = (leaves(read_state(RunFolder(path).state)) for path in (first, second))
    assert one.keys() == two.keys()
    for key, value in one.items():
        same = torch.equal(value, two[key]) if torch.is_tensor(value) else value == two[key]
        assert same, key


def test_resumed_run_equals_the_straight_one_bit_for_bit(
    config: TrainConfig, tmp_path: Path
) -> None:
    straight = run(config, tmp_path / "a")
    assert straight.finished
    assert straight.stopped_by is None
    first = run(config, tmp_path / "b", stop_at=7)
    assert (first.step, first.stopped_by, first.finished) == (7, "stop_at", False)
    run(config, tmp_path / "b", stop_at=13, resume=True)
    last = run(config, tmp_path / "b", resume=True)
    assert_same_state(tmp_path / "a", tmp_path / "b")
    assert last.scores == straight.scores

    def log(name: str) -> list[dict]:
        rows = RunFolder(tmp_path / name).rows()
        return [{k: v for k, v in row.items() if k != "samples_per_s"} for row in rows]

    assert log("a") == log("b")


def test_background_workers_change_nothing(config: TrainConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, steps=6)
    run(config, tmp_path / "a")
    run(dataclasses.replace(config, workers=1), tmp_path / "b")
    assert_same_state(tmp_path / "a", tmp_path / "b")


def test_it_learns(config: TrainConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, steps=60, val_every=5)
    result = run(config, tmp_path / "run")
    rows = [row for row in RunFolder(tmp_path / "run").rows() if row["kind"] == "val"]
    assert rows[-1]["loss"] < 0.75 * rows[0]["loss"]
    assert result.best_S == max(row["S"] for row in rows)
    assert read_state(RunFolder(tmp_path / "run").best)["step"] == result.best_step


def test_global_random_state_and_threads_are_left_alone(
    config: TrainConfig, tmp_path: Path
) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    run(dataclasses.replace(config, steps=2), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_finished_work(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    handler = signal.getsignal(number)
    rate = session_module.learning_rate
    sent: list[int] = []

    def interrupting(config: TrainConfig, step: int) -> float:
        if step == 6 and not sent:  # a second signal would act at once
            sent.append(step)
            os.kill(os.getpid(), number)
        return rate(config, step)

    monkeypatch.setattr(session_module, "learning_rate", interrupting)
    result = run(config, tmp_path / "b")
    monkeypatch.undo()
    assert (result.step, result.stopped_by) == (7, number.name)
    assert signal.getsignal(number) is handler
    assert read_state(RunFolder(tmp_path / "b").state)["step"] == 7


def test_a_crash_between_saves_repeats_the_lost_steps(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config, tmp_path / "a")
    rate = session_module.learning_rate

    def failing(config: TrainConfig, step: int) -> float:
        if step == 13:
            raise RuntimeError("power cut")
        return rate(config, step)

    monkeypatch.setattr(session_module, "learning_rate", failing)
    with pytest.raises(RuntimeError, match="power cut"):
        run(config, tmp_path / "b")
    monkeypatch.setattr(session_module, "learning_rate", rate)
    assert read_state(RunFolder(tmp_path / "b").state)["step"] == 10
    assert RunFolder(tmp_path / "b").rows()[-1]["step"] == 12
    with RunFolder(tmp_path / "b").log.open("a") as stream:
        stream.write('{"kind": "tra')  # the line that the power cut interrupted
    run(config, tmp_path / "b", resume=True)
    assert_same_state(tmp_path / "a", tmp_path / "b")
    steps = [row["step"] for row in RunFolder(tmp_path / "b").rows() if row["kind"] == "train"]
    assert steps == list(range(2, 21, 2))


def test_time_limit_ends_a_session(config: TrainConfig, tmp_path: Path) -> None:
    result = run(config, tmp_path / "run", stop_after_minutes=0.0)
    assert (result.step, result.stopped_by) == (1, "time")


@pytest.mark.parametrize(
    ("field", "value"), [("steps", 30), ("lr", 0.5), ("seed", 3), ("ema", 0.0), ("batch_size", 2)]
)
def test_resume_under_other_settings_is_refused(
    config: TrainConfig, tmp_path: Path, field: str, value: float
) -> None:
    run(config, tmp_path / "run", stop_at=1)
    changed = dataclasses.replace(config, **{field: value})
    with pytest.raises(ConfigError, match=rf"{field} was .* and is now {value}"):
        run(changed, tmp_path / "run", resume=True)


def test_resume_may_change_threads_and_intervals(config: TrainConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "run", stop_at=1)
    changed = dataclasses.replace(config, save_every=3, val_every=4)
    assert run(changed, tmp_path / "run", resume=True, stop_at=2).step == 2


def test_finished_work_is_not_overwritten(config: TrainConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "run", stop_at=1)
    with pytest.raises(ConfigError, match="holds a training run already"):
        run(config, tmp_path / "run")


def test_resuming_a_complete_run_returns_its_result(config: TrainConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, steps=3)
    done = run(config, tmp_path / "run")
    assert run(config, tmp_path / "run", resume=True) == done


def test_damaged_state_is_reported(config: TrainConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "run", stop_at=1)
    RunFolder(tmp_path / "run").state.write_bytes(b"gone")
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        run(config, tmp_path / "run", resume=True)


def test_holdout_list_and_log_are_written(config: TrainConfig, tmp_path: Path) -> None:
    run(dataclasses.replace(config, steps=2, val_images=2), tmp_path / "run")
    names = (tmp_path / "run" / "holdout-pairs-squares.txt").read_text().split()
    assert len(names) == 3
    text = (tmp_path / "run" / "log.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert {row["set"] for row in rows if row["kind"] == "val"} == {
        "camosynth-val",
        "pairs-squares",
    }
    assert {"step", "loss", "lr", "samples_per_s"} <= rows[0].keys()


def test_a_bad_batch_does_not_poison_the_weights(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(outputs: torch.Tensor, mask: torch.Tensor, progress: float) -> torch.Tensor:
        return outputs.mean() * (float("nan") if progress == 0.5 else 1.0)

    monkeypatch.setitem(session_module.LOSSES, "bce-iou", spoiled)
    run(dataclasses.replace(config, steps=4), tmp_path / "run", stop_at=3)
    state = read_state(RunFolder(tmp_path / "run").state)
    assert all(bool(torch.isfinite(v).all()) for v in state["model"].values())


def test_without_average_the_weights_themselves_are_judged(
    config: TrainConfig, tmp_path: Path
) -> None:
    result = run(dataclasses.replace(config, steps=2, ema=0.0), tmp_path / "run")
    assert read_state(RunFolder(tmp_path / "run").state)["average"] is None
    assert "pairs-squares" in result.scores


def test_train_takes_size_and_loss_from_the_model(
    net: str, pairs_root: Path, tmp_path: Path
) -> None:
    source = SourceSpec(kind="pairs", path=str(pairs_root))
    settings = {"batch_size": 2, "workers": 0, "val_images": 0}
    train(net, tmp_path / "run", sources=[source], steps=1, **settings)
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (saved["size"], saved["loss"]) == (32, "bce-iou")
    with pytest.raises(ConfigError, match="'momentum'"):
        train(net, tmp_path / "x", sources=[source], steps=1, momentum=0.9)
    with pytest.raises(ConfigError, match="multiple of 32"):
        train(net, tmp_path / "x", sources=[source], steps=1, size=40)
    with pytest.raises(ConfigError, match="'hinge' is unknown"):
        train(net, tmp_path / "x", sources=[source], steps=1, loss="hinge")
