"""A diagnosis as a folder: JSON, CSV, pictures, figures and the page; whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from codtdq.errors import DataError
from codtdq.io import draft_folder
from codtdq.lab.diagnosis.record import Diagnosis, GalleryItem
from codtdq.lab.pages.diagnosis import Drawing, diagnosis_page
from codtdq.lab.text import safe_name
from codtdq.progress import Progress

PAGE = "report.html"


def check_folder(out: str | Path, *, overwrite: bool = False) -> Path:
    """Refuse a folder with something in it, before any work is done."""
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file; --out takes a folder")
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise DataError(f"{path} is not empty; choose another folder, or pass --overwrite")
    return path


def write_folder(
    diagnosis: Diagnosis, out: str | Path, *, figures: bool = True, overwrite: bool = False
) -> list[Path]:
    """Write everything beside the goal, then move it there; returns the files.

    overwrite: replace the files of an earlier diagnosis; others in the folder stay.
    """
    path = check_folder(out, overwrite=overwrite)
    with draft_folder(path) as draft:
        _fill(diagnosis, draft, figures)
        names = sorted(p.relative_to(draft) for p in draft.rglob("*") if p.is_file())
    return [path / name for name in names]


def _fill(diagnosis: Diagnosis, folder: Path, figures: bool) -> None:
    drawings = _draw(diagnosis, folder / "figures") if figures else []
    for index, item in enumerate(diagnosis.gallery):
        files = _pictures(item, index, folder)
        for record in diagnosis.images:
            if record.name == item.name:
                record.files = files
    diagnosis.to_json(folder / "diagnosis.json")
    diagnosis.layers_csv(folder / "layers.csv")
    diagnosis.weights_csv(folder / "weights.csv")
    (folder / PAGE).write_text(diagnosis_page(diagnosis, drawings), encoding="utf-8")


def _draw(diagnosis: Diagnosis, folder: Path) -> list[Drawing]:
    from codtdq.lab.figures import draw_figures, figure_bytes

    folder.mkdir()
    drawings = []
    with Progress("drawing") as bar:
        for drawn in draw_figures(diagnosis):
            png, svg = (figure_bytes(drawn.figure, form) for form in ("png", "svg"))
            (folder / f"{drawn.name}.png").write_bytes(png)
            (folder / f"{drawn.name}.svg").write_bytes(svg)
            drawings.append(Drawing(drawn.title, drawn.caption, png))
            bar.step()
    return drawings


def _pictures(item: GalleryItem, index: int, folder: Path) -> dict[str, str]:
    """Write the arrays of one image as PNG files; returns their paths by title."""
    arrays: dict[str, NDArray[np.uint8]] = {
        "image": item.image,
        "ground-truth": item.truth,
        "boundary-band": item.band,
        **{f"mask-{method}": mask for method, mask in item.predictions.items()},
        **{
            f"zeroed-{method}-{layer}": share
            for method, maps in item.zeroed.items()
            for layer, share in maps.items()
        },
    }
    place = folder / "images" / f"{index:02d}-{safe_name(item.name)}"
    place.mkdir(parents=True)
    files = {}
    for title, array in arrays.items():
        file = place / f"{safe_name(title)}.png"
        Image.fromarray(array).save(file, format="PNG", optimize=True)
        files[title] = file.relative_to(folder).as_posix()
    return files
