"""Data sets on disk: a folder of images with masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from codtdq.data.dataset import check_limit, checked_index
from codtdq.data.pairing import describe_problems, pair_files
from codtdq.data.sample import Sample
from codtdq.errors import DataError
from codtdq.imagefile import IMAGE_SUFFIXES, list_image_files, read_image, read_mask

# Folder names in use, images and masks, most specific first: SINet and most of COD; COD10K as
# released; BiRefNet and DIS; other segmentation data.
LAYOUTS: tuple[tuple[str, str], ...] = (
    ("Imgs", "GT"),
    ("Image", "GT_Object"),
    ("im", "gt"),
    ("images", "masks"),
)


class ImageMaskFolder:
    """A folder of images with one mask each, paired by file stem.

    root: holds one of LAYOUTS (any case), unless images_dir and masks_dir name its two folders.
    name: shown in reports; the folder's own name by default.
    keep: which file stems belong to the data set; all by default.
    limit: use only the first so many images, in the order of their names.
    allow_missing: skip what cannot be paired and say so in `notes` instead of raising DataError.

    Pairs and sizes are checked here from file headers; pixels are decoded on access.
    """

    def __init__(
        self,
        root: Path | str,
        images_dir: Path | str | None = None,
        masks_dir: Path | str | None = None,
        *,
        name: str | None = None,
        keep: Callable[[str], bool] | None = None,
        limit: int | None = None,
        allow_missing: bool = False,
    ) -> None:
        check_limit(limit)
        self.root = Path(root)
        self.name = name or self.root.resolve().name
        self.images_dir, self.masks_dir = _resolve_folders(self.root, images_dir, masks_dir)
        self.notes: list[str] = []
        images = list_image_files(self.images_dir)
        masks = list_image_files(self.masks_dir)
        if keep is not None:
            kept = [path for path in images if keep(path.stem)]
            if len(kept) < len(images):
                self.notes.append(
                    f"{self.name}: {len(images) - len(kept)} images of another kind left out"
                )
            images, masks = kept, [path for path in masks if keep(path.stem)]
        pairs, problems = pair_files(images, masks)
        if problems:
            text = f"{self.name} at {self.root}: {describe_problems(problems)}"
            if not allow_missing:
                raise DataError(f"{text}; fix the files or allow missing ones to skip them")
            self.notes.append(f"{text}; skipped")
        if not pairs:
            raise DataError(
                f"{self.name} at {self.root}: no usable image and mask pair in "
                f"{self.images_dir.name} and {self.masks_dir.name} (accepted: "
                f"{' '.join(IMAGE_SUFFIXES)}, paired by name)"
            )
        self.found = len(pairs)
        self._pairs = pairs[:limit]
        if len(self._pairs) < self.found:
            self.notes.append(f"{self.name}: {len(self._pairs)} of {self.found} images used")

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Sample:
        pair = self._pairs[checked_index(index, len(self))]
        return Sample(pair.name, read_image(pair.image), read_mask(pair.mask))

    def names(self) -> list[str]:
        """Return the file stems in order."""
        return [pair.name for pair in self._pairs]


def find_layout(root: Path) -> tuple[Path, Path] | None:
    """Find the image and mask folders of a known layout below `root`, in any case."""
    if not root.is_dir():
        return None
    folders = child_folders(root)
    for images, masks in LAYOUTS:
        if images.lower() in folders and masks.lower() in folders:
            return folders[images.lower()], folders[masks.lower()]
    return None


def child_folders(root: Path) -> dict[str, Path]:
    """Map the lower-case name of each folder directly below `root` to its path."""
    try:
        return {path.name.lower(): path for path in sorted(root.iterdir()) if path.is_dir()}
    except OSError as error:
        raise DataError(f"{root}: cannot be listed ({error.strerror})") from error


def _resolve_folders(
    root: Path, images_dir: Path | str | None, masks_dir: Path | str | None
) -> tuple[Path, Path]:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give a folder that holds images and masks")
    if (images_dir is None) != (masks_dir is None):
        raise DataError(f"{root}: give both the images folder and the masks folder, or neither")
    if images_dir is not None and masks_dir is not None:
        chosen = root / images_dir, root / masks_dir
        for folder in chosen:
            if not folder.is_dir():
                raise DataError(f"{folder}: no such folder")
        return chosen
    layout = find_layout(root)
    if layout is None:
        accepted = ", ".join(f"{images}/ with {masks}/" for images, masks in LAYOUTS)
        inside = ", ".join(path.name for path in child_folders(root).values()) or "none"
        raise DataError(f"{root}: needs one of {accepted} (any case); folders found: {inside}")
    return layout
