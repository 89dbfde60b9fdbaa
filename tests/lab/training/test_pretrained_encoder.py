"""A run that starts from an encoder: loaded alone, frozen or slow, resumable."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from codtdq.errors import CheckpointError, ConfigError
from codtdq.lab.training import TrainConfig, run
from codtdq.lab.training.state import RunFolder, read_state
from codtdq.models import registry
from codtdq.models.vit import VitConfig
from codtdq.models.vit_cod import VitCod
from codtdq.models.weights import save_weights

TINY = "training-test-vit-cod"


def build() -> nn.Module:
    return VitCod(VitConfig(dim=16, depth=3, num_heads=2, table_side=3), after=(1, 3), width=32)


@pytest.fixture
def vit_config(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    info = registry.ModelInfo(
        name=TINY, description="for tests", input_size=42, size_multiple=14, loss="vit-cod"
    )
    monkeypatch.setitem(registry._MODELS, TINY, (info, build))
    return dataclasses.replace(
        config, model=TINY, size=42, loss="vit-cod", steps=6, val_every=3, save_every=3, lr=2e-3
    )


@pytest.fixture
def encoder_file(tmp_path: Path) -> Path:
    torch.manual_seed(11)
    model = build()
    save_weights(model.encoder, tmp_path / "encoder.safetensors", dtype=torch.float32)
    return tmp_path / "encoder.safetensors"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_state(RunFolder(folder).state)["model"]


def test_a_frozen_encoder_keeps_its_weights_and_the_decoder_learns(
    vit_config: TrainConfig, encoder_file: Path, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        vit_config, encoder=str(encoder_file), frozen=("encoder.*",), bfloat16=True
    )
    result = run(config, tmp_path / "a")
    assert result.finished and 0 < result.scores["pairs-squares"]["S"] < 1
    torch.manual_seed(11)
    original = build().state_dict()
    state = read_state(RunFolder(tmp_path / "a").state)
    for part in ("model", "average"):
        same = {key: torch.equal(v, original[key]) for key, v in state[part].items()}
        assert all(same[key] for key in same if key.startswith("encoder."))
    assert not torch.equal(
        weights(tmp_path / "a")["decoder.mix.conv.weight"], original["decoder.mix.conv.weight"]
    )


def test_resumed_run_equals_the_straight_one(
    vit_config: TrainConfig, encoder_file: Path, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        vit_config,
        encoder=str(encoder_file),
        frozen=("encoder.patch_embed.*", "encoder.blocks.0.*"),
        slow=("encoder.*",),
        slow_lr=0.05,
        bfloat16=True,
    )
    run(config, tmp_path / "a")
    run(config, tmp_path / "b", stop_at=4)
    run(config, tmp_path / "b", resume=True)
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[key], two[key]) for key in one)
    torch.manual_seed(11)
    original = build().state_dict()

    def moved(name: str) -> float:
        return float((one[name] - original[name]).abs().max())

    assert moved("encoder.blocks.0.attn.qkv.weight") == 0
    # AdamW moves by about the rate per step: slow ones by a twentieth of 2e-3 at most
    assert 0 < moved("encoder.blocks.2.attn.qkv.weight") < 6 * 1.1 * 0.05 * 2e-3


def test_wrong_encoders_are_one_line(
    vit_config: TrainConfig, encoder_file: Path, tmp_path: Path, net: str
) -> None:
    both = {"encoder": str(encoder_file), "init": str(encoder_file)}
    with pytest.raises(ConfigError, match="both given"):
        dataclasses.replace(vit_config, **both)
    other = dataclasses.replace(
        vit_config, model=net, size=32, loss="bce-iou", encoder=str(encoder_file)
    )
    with pytest.raises(ConfigError, match="has no child `encoder`"):
        run(other, tmp_path / "x")
    save_weights(nn.Linear(2, 2), tmp_path / "linear.safetensors")
    unfit = dataclasses.replace(vit_config, encoder=str(tmp_path / "linear.safetensors"))
    with pytest.raises(CheckpointError, match="does not fit 'encoder of training-test-vit-cod'"):
        run(unfit, tmp_path / "y")
