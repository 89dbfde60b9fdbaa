from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from codtdq.lab.training import SourceSpec, TrainConfig
from codtdq.models import registry

NET = "training-test-net"


class TinyNet(nn.Module):
    """Normalisation, dropout and buffers: everything that a resumed run could get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 2, 1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout2d(0.3)
        self.head = nn.Conv2d(6, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.stem(x)))))


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny registered model, gone again after the test."""
    info = registry.ModelInfo(name=NET, description="for tests", input_size=32)
    monkeypatch.setitem(registry._MODELS, NET, (info, TinyNet))
    return NET


@pytest.fixture
def pairs_root(tmp_path: Path) -> Path:
    """Twelve images with a bright square as object, in the Imgs/GT layout."""
    root = tmp_path / "squares"
    rng = np.random.default_rng(5)
    for folder in ("Imgs", "GT"):
        (root / folder).mkdir(parents=True)
    for index in range(12):
        image = rng.integers(0, 90, (40, 56, 3), dtype=np.uint8)
        mask = np.zeros((40, 56), dtype=np.uint8)
        top, left = rng.integers(4, 16, 2)
        mask[top : top + 14, left : left + 20] = 255
        image[mask > 0] += 140
        Image.fromarray(image).save(root / "Imgs" / f"img_{index:02d}.png")
        Image.fromarray(mask).save(root / "GT" / f"img_{index:02d}.png")
    return root


@pytest.fixture
def photo_folder(tmp_path: Path) -> Path:
    """Three noise photos of different shapes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(6)
    for index, shape in enumerate(((80, 120, 3), (120, 80, 3), (64, 64, 3))):
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def config(pairs_root: Path) -> TrainConfig:
    """A short run on the squares, prepared inline."""
    return TrainConfig(
        model=NET,
        sources=(SourceSpec(kind="pairs", path=str(pairs_root), holdout=3),),
        steps=20,
        batch_size=4,
        size=32,
        loss="bce-iou",
        lr=0.02,
        warmup=4,
        val_images=0,
        val_every=10,
        save_every=5,
        log_every=2,
        workers=0,
        ema=0.9,
    )
