"""Write files whole or not at all.

Every file of this package reaches its name through `atomic_path`: a reader, or a run that is killed
at any moment, finds the old content or the new one, never a part of it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PREFIX = ".codtdq-"  # hidden, and beside the target: a rename works within one file system only
_ATTEMPTS = 100


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary file beside `path`; it takes that name when the block ends well.

    The folder is created where it is missing. The file is new (O_EXCL), has a name that nobody can
    guess, and the permissions that the umask of the process allows. It is removed on any error, an
    interrupt included, and `path` keeps what it held.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _new_file(path.parent)
    mode = stat.S_IMODE(temporary.stat().st_mode)
    try:
        yield temporary
        temporary.chmod(mode)  # safetensors puts a private file of its own in this place
        _force_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def draft_folder(path: str | Path) -> Iterator[Path]:
    """Give an empty folder beside `path`; what it holds moves into `path` when the block ends well.

    An entry of `path` with the same name is replaced, others stay. On an error, an interrupt
    included, the draft is removed and `path` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PREFIX))
    try:
        yield draft
        path.mkdir(exist_ok=True)
        for item in sorted(draft.iterdir()):
            target = path / item.name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            os.replace(item, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file; returns its path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in UTF-8, line ends as they are in `text`; returns its path."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(
    path: str | Path, value: Any, *, indent: int | None = None, allow_nan: bool = True
) -> Path:
    """Write one JSON document that ends with a line end; returns its path.

    A value that JSON cannot hold is refused before anything is written.
    """
    return write_text(path, json.dumps(value, indent=indent, allow_nan=allow_nan) + "\n")


def _new_file(folder: Path) -> Path:
    """Create an empty file that did not exist, readable by whom the umask allows.

    `tempfile.mkstemp` would do, but for its fixed mode 0600.
    """
    for _ in range(_ATTEMPTS):
        name = folder / f"{_PREFIX}{os.urandom(8).hex()}.tmp"
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            continue
        return name
    raise FileExistsError(f"{folder}: no free temporary name in {_ATTEMPTS} attempts")


def _force_to_disk(path: Path) -> None:
    """Have the content on disk before the name, so that a crash cannot leave an empty file."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
