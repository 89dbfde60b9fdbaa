"""Writing synthetic scenes to disk in the layout that the benchmarks use."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from codtdq.data.camosynth import DEFAULT_SIZE, VERSION, check_request, generate
from codtdq.errors import DataError
from codtdq.io import write_bytes, write_json

INFO_FILE = "camosynth.json"


def export_synth(
    split: str, out_dir: Path | str, count: int, size: int = DEFAULT_SIZE
) -> list[Path]:
    """Write the first `count` images of a split as Imgs/*.png and GT/*.png; return the images.

    Also writes INFO_FILE with version, split, count and size, last, so that its presence means the
    export is complete. Each file appears whole or not at all. A folder that holds
    anything is refused with DataError.
    """
    if count < 1:
        raise DataError(f"count is {count}; give 1 or more images to export")
    check_request(split, count - 1, size)
    out = Path(out_dir)
    written = []
    try:
        _require_empty(out)
        for folder in ("Imgs", "GT"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            sample = generate(split, index, size)
            assert sample.mask is not None, "synthetic samples always have a mask"
            target = out / "Imgs" / f"{sample.name}.png"
            write_bytes(target, _png(sample.image))
            write_bytes(out / "GT" / f"{sample.name}.png", _png(sample.mask))
            written.append(target)
        info = {"version": VERSION, "split": split, "count": count, "size": size}
        write_json(out / INFO_FILE, info, indent=2)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror})") from error
    return written


def _require_empty(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a new or empty folder")
    if out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: is not empty; give a new or empty folder")


def _png(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
