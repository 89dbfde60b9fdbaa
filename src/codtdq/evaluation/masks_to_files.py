"""Masks as PNG files, and overlays that a person can judge at a glance."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from codtdq.data.dataset import Dataset
from codtdq.errors import DataError
from codtdq.evaluation.predict import predict
from codtdq.io import write_bytes
from codtdq.progress import Progress

TINT = np.array([255, 64, 32], dtype=np.float32)  # of the predicted object in an overlay


def predict_to_files(
    model: nn.Module,
    sources: Sequence[Dataset],
    out: str | Path,
    *,
    overlay: bool = False,
    postprocess: str | None = None,
) -> list[Path]:
    """Write `<name>.png` (and `<name>-overlay.png`) for every image; returns the files."""
    out = Path(out)
    _check_names(sources)
    written: list[Path] = []
    with Progress("predicting", sum(len(source) for source in sources)) as bar:
        for source in sources:
            for index in range(len(source)):
                sample = source[index]
                mask = predict(model, sample.image, postprocess=postprocess)
                written.append(_write(out / f"{sample.name}.png", mask))
                if overlay:
                    picture = overlay_of(sample.image, mask)
                    written.append(_write(out / f"{sample.name}-overlay.png", picture))
                bar.step(note=sample.name)
    return written


def overlay_of(image: NDArray[np.uint8], mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image with the predicted object tinted, as strongly as the mask says: uint8 [H, W, 3]."""
    weight = mask[..., None].astype(np.float32) / 255 * 0.6
    mixed = image.astype(np.float32) * (1 - weight) + TINT * weight
    result: NDArray[np.uint8] = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return result


def _check_names(sources: Sequence[Dataset]) -> None:
    seen: set[str] = set()
    for name in (name for source in sources for name in source.names()):
        if name in seen:
            raise DataError(
                f"two images are called {name!r}; their masks would overwrite each other"
            )
        seen.add(name)


def _write(path: Path, pixels: NDArray[np.uint8]) -> Path:
    """Write a PNG whole or not at all."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return write_bytes(path, buffer.getvalue())
