"""Two methods on two small data sets, as folders of maps and masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codtdq.data import generate

COUNTS = {"CAMO": 5, "Pond": 3}


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def soft_map(mask: np.ndarray, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = 0.8 * mask.astype(float) + rng.normal(20, noise, mask.shape)
    return np.clip(values, 0, 255).astype(np.uint8)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """TestDataset/<set>/{Imgs,GT} and results/<method>/<set>, as SINet's authors lay them out."""
    for number, (dataset, count) in enumerate(COUNTS.items()):
        for index in range(count):
            scene = generate("test-easy", 10 * number + index, 48)
            name = f"{dataset.lower()}-{index}.png"
            write(tmp_path / "TestDataset" / dataset / "Imgs" / name, scene.image)
            write(tmp_path / "TestDataset" / dataset / "GT" / name, scene.mask)
            for method, noise in (("good", 30), ("poor", 90)):
                pixels = soft_map(scene.mask, noise, seed=7 * index + number)
                write(tmp_path / "results" / method / dataset / name, pixels)
    return tmp_path


@pytest.fixture
def rename(maps: Path) -> Callable[[str, str, str], None]:
    """Rename the files of a folder to prefix + name + suffix."""

    def apply(folder: str, prefix: str, suffix: str) -> None:
        for path in sorted((maps / folder).iterdir()):
            path.rename(path.with_name(f"{prefix}{path.stem}{suffix}"))

    return apply
