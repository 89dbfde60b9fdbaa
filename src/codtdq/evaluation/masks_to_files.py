"""Masks as PNG files: whole or not at all, never over an input, and on where one image fails."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import nn

from codtdq.data.dataset import Dataset
from codtdq.errors import ConfigError, DataError
from codtdq.evaluation.masks import check_threshold
from codtdq.evaluation.pictures import cutout_of, overlay_of
from codtdq.evaluation.predict import info_of, predict
from codtdq.evaluation.provenance import model_hash
from codtdq.imagefile import PIL_ERRORS
from codtdq.io import write_bytes
from codtdq.progress import Progress

MARK = "codtdq"  # text of a mask's PNG: which model made it, and how
_SHOWN = 3  # names in a message


@dataclass(frozen=True)
class Pictures:
    """What is made of every image.

    threshold: cut the mask there, into 0 and 255. overlay, cutout: further files, see `pictures`.
    """

    threshold: float | None = None
    overlay: bool = False
    cutout: bool = False
    postprocess: str | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_threshold(self.threshold)

    @property
    def endings(self) -> list[str]:
        """What follows the name of an image in its files; the mask's comes last.

        The mask is written last: where it is, the others are.
        """
        return [*(["-overlay"] if self.overlay else []), *(["-cutout"] if self.cutout else []), ""]

    def drawn(self, model: nn.Module, image: NDArray[np.uint8]) -> Iterator[tuple[str, Any]]:
        """Predict an image and yield the pixels of each of its files, by ending."""
        mask = predict(model, image, postprocess=self.postprocess, threshold=self.threshold)
        make = {"-overlay": overlay_of, "-cutout": cutout_of}
        for ending in self.endings:
            yield ending, make[ending](image, mask) if ending else np.asarray(mask)


@dataclass
class Written:
    """What became of the images: files, images that were done before, and failures by name."""

    files: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def predict_to_files(
    model: nn.Module,
    sources: Sequence[Dataset],
    out: str | Path,
    pictures: Pictures | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> Written:
    """Write `<name>.png`, and what else is asked for, of every image.

    out: a folder; or, for one image, the name of its PNG.
    overwrite: replace files that are there. resume: leave images whose mask is there, if the same
        model made it in the same way.

    An image that cannot be read is noted in the result, and the others go on. Files that would
    replace an input are refused before anything runs.
    """
    pictures = pictures or Pictures()
    check_files(sources, out, pictures, overwrite=overwrite, resume=resume)
    stems = _stems(sources, Path(out))
    mark = _mark(model, pictures)
    kept = [name for name in stems if resume and _finished(stems[name], pictures, mark)]
    result = Written(kept=kept)
    done = set(kept)
    with Progress("predicting", len(stems)) as bar:
        bar.step(len(kept))
        for source in sources:
            for index, name in enumerate(source.names()):
                if name in done:
                    continue
                try:
                    for ending, pixels in pictures.drawn(model, source[index].image):
                        data = encoded(pixels, None if ending else mark)
                        result.files.append(write_bytes(_target(stems[name], ending), data))
                except DataError as error:
                    result.failed[name] = str(error)
                bar.step(note=name)
    return result


def check_files(
    sources: Sequence[Dataset],
    out: str | Path,
    pictures: Pictures,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> None:
    """Raise where `predict_to_files` would replace what it must not; needs no model."""
    stems = _stems(sources, Path(out))
    targets = [_target(stem, end) for stem in stems.values() for end in pictures.endings]
    _check_inputs(sources, targets)
    if not overwrite and not resume:
        _check_new(targets, Path(out))


def encoded(pixels: NDArray[Any], mark: str | None = None) -> bytes:
    """A PNG in memory; mark: a text that goes along."""
    buffer, info = io.BytesIO(), PngInfo()
    if mark is not None:
        info.add_text(MARK, mark)
    Image.fromarray(pixels).save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def _stems(sources: Sequence[Dataset], out: Path) -> dict[str, Path]:
    """Where the files of each image go, without ending and suffix."""
    names = [name for source in sources for name in source.names()]
    single = out.suffix.lower() == ".png" and not out.is_dir()
    if single and len(names) > 1:
        raise ConfigError(
            f"{out} is the name of one file, for {len(names)} images; give a folder instead"
        )
    if out.is_file() and not single:
        raise ConfigError(f"{out} is a file; give a folder for the masks, or a name ending in .png")
    found: dict[str, Path] = {}
    for name in names:
        if name in found:
            raise DataError(
                f"two images are called {name!r}; their masks would overwrite each other"
            )
        found[name] = out.with_suffix("") if single else out / name
    return found


def _target(stem: Path, ending: str) -> Path:
    return stem.with_name(f"{stem.name}{ending}.png")


def _check_inputs(sources: Sequence[Dataset], targets: Sequence[Path]) -> None:
    """Refuse to replace an image by its mask, by whatever path either is named."""
    inputs = {
        _identity(file) for source in sources for file in getattr(source, "files", []) if file
    }
    for path in targets:
        if path.exists() and _identity(path) in inputs:
            raise ConfigError(
                f"{path} is one of the images and would be replaced by its mask; "
                "choose another folder for the masks"
            )


def _identity(path: Path) -> tuple[int, int]:
    """The file itself, whatever links and spellings lead to it."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _check_new(targets: Sequence[Path], out: Path) -> None:
    there = [path for path in targets if path.exists()]
    if there:
        names = ", ".join(path.name for path in there[:_SHOWN])
        raise ConfigError(
            f"{len(there)} of the files to write are in {out} already ({names}"
            f"{', ...' if len(there) > _SHOWN else ''}); --overwrite replaces them, --resume "
            "keeps those of finished images"
        )


def _mark(model: nn.Module, pictures: Pictures) -> str:
    return json.dumps(
        {
            "model": model_hash(model),
            "input_size": info_of(model).input_size,
            "postprocess": pictures.postprocess or info_of(model).postprocess,
            "threshold": pictures.threshold,
        }
    )


def _finished(stem: Path, pictures: Pictures, mark: str) -> bool:
    """Whether all files of an image are there; an error where another model made them."""
    if not all(_target(stem, ending).exists() for ending in pictures.endings):
        return False
    mask = _target(stem, "")
    try:
        with Image.open(mask) as picture:
            found = picture.info.get(MARK)
    except PIL_ERRORS:
        found = None
    if found != mark:
        raise ConfigError(
            f"{mask} was not made by this model with these settings; --overwrite instead of "
            "--resume replaces it"
        )
    return True
