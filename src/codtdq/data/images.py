"""Images without masks, for prediction and calibration: on disk, or at hand in Python."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from codtdq.data.dataset import check_limit, checked_index
from codtdq.data.folder import LAYOUTS, child_folders
from codtdq.data.sample import Sample
from codtdq.errors import DataError
from codtdq.imagefile import IMAGE_SUFFIXES, is_image_file, list_image_files, read_upright
from codtdq.pixels import ImageLike, to_pixels

ACCEPTED = f"accepted: {' '.join(IMAGE_SUFFIXES)}"


class ImageFolder:
    """Images without masks: one file, a folder, or a glob pattern; each is turned upright.

    A folder without images of its own stands for its Imgs or Image folder, or else for all that
    lies below it.

    recursive: take what lies below the folder too. An image there goes by its path from the folder.
    limit: use only the first so many images, in the order of their names.
    """

    def __init__(
        self,
        source: Path | str,
        *,
        name: str | None = None,
        limit: int | None = None,
        recursive: bool = False,
    ) -> None:
        check_limit(limit)
        self.name = name or Path(source).stem or "images"
        self.notes: list[str] = []
        named = self._named(Path(source), str(source), recursive)
        if not named:
            raise DataError(f"{source}: holds no image; {ACCEPTED}")
        _check_unique(named)
        found = len(named)
        self._named_files = named[:limit]
        if len(self) < found:
            self.notes.append(f"{self.name}: {len(self)} of {found} images used")

    @property
    def files(self) -> list[Path]:
        """The files, in order."""
        return [path for _, path in self._named_files]

    def __len__(self) -> int:
        return len(self._named_files)

    def __getitem__(self, index: int) -> Sample:
        name, path = self._named_files[checked_index(index, len(self))]
        return Sample(name, read_upright(path))

    def names(self) -> list[str]:
        """Return the names in order: file stems, below folders with the path to them."""
        return [name for name, _ in self._named_files]

    def _named(self, path: Path, pattern: str, recursive: bool) -> list[tuple[str, Path]]:
        if path.is_file():
            if not is_image_file(path):
                raise DataError(f"{path}: not an image file; {ACCEPTED}")
            return [(path.stem, path)]
        if path.is_dir():
            return self._of_folder(path, recursive)
        if glob.has_magic(pattern):
            matches = (Path(match) for match in glob.glob(pattern, recursive=True))
            return [(file.stem, file) for file in sorted(matches) if is_image_file(file)]
        raise DataError(f"{path}: no such file or folder; give an image, a folder or a pattern")

    def _of_folder(self, folder: Path, recursive: bool) -> list[tuple[str, Path]]:
        files = [] if recursive else list_image_files(folder)
        below = None if files or recursive else child_folders(folder)
        for images, _ in LAYOUTS:
            if below and images.lower() in below:
                files = files or list_image_files(below[images.lower()])
        if not files:
            return [
                (file.relative_to(folder).with_suffix("").as_posix(), file)
                for file in _files_below(folder)
            ]
        if below is None:
            left = sum(1 for file in _files_below(folder) if file.parent != folder)
            if left:
                self.notes.append(
                    f"{self.name}: {left} images in folders below it left out; "
                    "--recursive takes them"
                )
        return [(file.stem, file) for file in files]


class ImageList:
    """Images at hand, of any kind that `to_pixels` takes, as a data set without masks.

    names: by default the stem of a file, and the position of anything else.
    """

    def __init__(
        self,
        images: Iterable[ImageLike],
        *,
        names: Sequence[str] | None = None,
        name: str = "images",
        limit: int | None = None,
    ) -> None:
        check_limit(limit)
        self._images = list(images)[:limit]
        if not self._images:
            raise DataError("the list of images is empty; give one or more")
        self.name = name
        self.notes: list[str] = []
        self._names = list(names) if names else _names_of(self._images)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        place = checked_index(index, len(self))
        return Sample(self._names[place], to_pixels(self._images[place]))

    def names(self) -> list[str]:
        """Return the names in order."""
        return list(self._names)


def _names_of(images: Sequence[ImageLike]) -> list[str]:
    """Stems of files, where each is used once; else positions."""
    stems = [
        Path(image).stem if isinstance(image, str | os.PathLike) else str(place)
        for place, image in enumerate(images)
    ]
    return stems if len(set(stems)) == len(stems) else [str(place) for place in range(len(images))]


def _files_below(folder: Path) -> list[Path]:
    """Image files in a folder and below it, sorted; hidden folders are left out."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in names if is_image_file(Path(root, name))]
    return sorted(found)


def _check_unique(named: Sequence[tuple[str, Path]]) -> None:
    """Refuse two images of one name: their predictions would overwrite each other."""
    seen: dict[str, Path] = {}
    for name, path in named:
        if name in seen:
            raise DataError(
                f"{seen[name]} and {path} share the name {name!r}, so their predictions "
                "would overwrite each other; rename one"
            )
        seen[name] = path
