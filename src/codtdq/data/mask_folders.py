"""Finding the ground truth of one or several data sets below a folder."""

from __future__ import annotations

from pathlib import Path

from codtdq.data.benchmarks import TEST_FOLDERS
from codtdq.data.folder import LAYOUTS, child_folders, find_layout
from codtdq.errors import DataError
from codtdq.imagefile import list_image_files

_MASKS = tuple(dict.fromkeys(masks.lower() for _, masks in LAYOUTS))


def mask_folders(root: Path | str) -> dict[str, Path]:
    """Folders of masks by name of their data set.

    root: a folder of masks, the folder of a data set (any of LAYOUTS; its images may be missing),
        or a folder of data sets such as SINet's TestDataset, itself or inside root.
    """
    top = Path(root)
    if not top.is_dir():
        raise DataError(f"{top}: no such folder; give a folder of masks or of data sets")
    own = _masks_of(top)
    if own is not None:
        return {_name_of(own): own}
    folders = child_folders(top)
    inside = next((folders[key] for key in TEST_FOLDERS if key in folders), top)
    found = {child.name: _masks_of(child) for child in child_folders(inside).values()}
    named = {name: masks for name, masks in found.items() if masks is not None}
    if not named:
        layouts = ", ".join(f"{images}/ with {masks}/" for images, masks in LAYOUTS)
        have = ", ".join(path.name for path in folders.values()) or "none"
        raise DataError(
            f"{top}: no masks here; accepted: a folder of masks, a data set ({layouts}, in any "
            f"case), or a folder of data sets; folders found: {have}"
        )
    return named


def _masks_of(folder: Path) -> Path | None:
    """The masks of a data set; the folder itself if it holds image files."""
    layout = find_layout(folder)
    if layout is not None:
        return layout[1]
    folders = child_folders(folder)
    masks = next((folders[name] for name in _MASKS if name in folders), None)
    if masks is not None:
        return masks
    return folder if list_image_files(folder) else None


def _name_of(masks: Path) -> str:
    """A folder called GT says nothing: its data set is the folder around it."""
    masks = masks.resolve()
    return masks.parent.name if masks.name.lower() in _MASKS else masks.name
