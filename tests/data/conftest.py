"""Fixtures of the data tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from small_image_files import MakeFolder, write_image, write_mask


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Write a small data set of the given stems below tmp_path; returns its folder."""

    def make(
        where: str,
        stems: Iterable[str],
        images: str = "Imgs",
        masks: str = "GT",
        suffix: str = ".jpg",
    ) -> Path:
        root = tmp_path / where
        for seed, stem in enumerate(stems):
            write_image(root / images / f"{stem}{suffix}", seed)
            write_mask(root / masks / f"{stem}.png")
        return root

    return make
