from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from codtdq.errors import CheckpointError, ConfigError
from codtdq.lab.training import TrainConfig, export, run
from codtdq.lab.training.export import model_card
from codtdq.lab.training.state import RunFolder, read_state
from codtdq.models.registry import build_model
from codtdq.models.weights import load_checkpoint

pytestmark = pytest.mark.usefixtures("net")


@pytest.mark.parametrize("which", ["last", "best"])
def test_exported_weights_are_the_averaged_ones(
    config: TrainConfig, tmp_path: Path, which: str
) -> None:
    result = run(config, tmp_path / "run")
    done = export(tmp_path / "run", tmp_path / "w.safetensors", date="2030-01-02", which=which)
    folder = RunFolder(tmp_path / "run")
    if which == "last":
        expected = read_state(folder.state)["average"]
        assert done.step == 20
    else:
        expected = read_state(folder.best)["weights"]
        assert done.step == result.best_step
    model = build_model(config.model)
    load_checkpoint(model, done.weights, architecture=config.model)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=1e-3, rtol=1e-3)


def test_card_names_sources_settings_and_scores(config: TrainConfig, tmp_path: Path) -> None:
    result = run(config, tmp_path / "run")
    done = export(tmp_path / "run", tmp_path / "w.safetensors", date="2030-01-02")
    card = done.card.read_text()
    score = result.scores["pairs-squares"]["S"]
    for part in ("2030-01-02", "pairs-squares", "seed 0", "100 %", f"{score:.4f}", "Licence"):
        assert part in card
    assert f"{done.parameters:,}" in card
    assert str(tmp_path) not in card  # names, not directories


def test_card_tells_what_was_pretrained_frozen_or_slow(config: TrainConfig) -> None:
    partly = dataclasses.replace(
        config, encoder="a/dino.safetensors", frozen=("stem.*",), slow=("norm.*",), bfloat16=True
    )
    card = model_card(partly, 20, 99, [], date="2030-01-02")
    parts = ("the encoder dino.safetensors", "frozen: `stem.*`", "at 0.1 of", "bfloat16")
    assert all(part in card for part in parts)
    plain = model_card(config, 20, 99, [], date="2030-01-02")
    assert "from fresh weights" in plain and "frozen" not in plain and "bfloat16" not in plain


def test_card_of_an_unvalidated_step_says_so(config: TrainConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "run", stop_at=3)
    done = export(tmp_path / "run", tmp_path / "w.safetensors", date="2030-01-02")
    assert "not validated" in done.card.read_text()
    assert "3 of 20 steps" in done.card.read_text()


def test_export_without_a_run_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        export(tmp_path / "none", tmp_path / "w.safetensors", date="x")
    run(dataclasses.replace(config, val_every=50), tmp_path / "run", stop_at=1)
    with pytest.raises(CheckpointError, match=r"best\.pt does not exist"):
        export(tmp_path / "run", tmp_path / "w.safetensors", date="x", which="best")
    with pytest.raises(ConfigError, match="accepted: last, best"):
        export(tmp_path / "run", tmp_path / "w.safetensors", date="x", which="first")
