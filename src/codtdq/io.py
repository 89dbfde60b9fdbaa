"""Write files whole or not at all.

Every file of this package reaches its name through `atomic_path`: a reader, or a run that is killed
at any moment, finds the old content or the new one, never a part of it. What a killed run leaves is
a temporary file that nobody has locked; the next writer of the folder removes it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system: no locks, and leftovers stay
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".codtdq-"  # hidden, and beside the target: a rename works within one file system only
_ATTEMPTS = 100
_SETTLED = 60.0  # seconds after which a temporary file without a lock has lost its writer
_swept: set[str] = set()  # folders that this process has looked through


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary file beside `path`; it takes that name when the block ends well.

    The folder is created where it is missing. The file is new (O_EXCL), has a name that nobody can
    guess, and the permissions that the umask of the process allows. It is removed on any error, an
    interrupt included, and `path` keeps what it held.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    temporary = _new_file(path.parent)
    mode = stat.S_IMODE(temporary.stat().st_mode)
    try:
        with _held(temporary):
            yield temporary
            temporary.chmod(mode)  # a writer may put a private file of its own in this place
            _force_to_disk(temporary)
            os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        # a full disk names no file; an error without a number is shown by its own words alone
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise
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
    remove_leftovers(path.parent)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PREFIX))
    try:
        with _held(draft):
            yield draft
            path.mkdir(exist_ok=True)
            for item in sorted(draft.iterdir()):
                target = path / item.name
                if target.is_dir() and not target.is_symlink():
                    # out of the way by a rename: a stop leaves the old folder or the new one
                    os.replace(target, draft / f"{_PREFIX}{item.name}")
                os.replace(item, target)
        sync_folder(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file; returns its path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_tensors(
    path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write tensors as safetensors; a full disk is an OSError here, as for any other file."""
    from safetensors.torch import save

    return write_bytes(path, save(dict(tensors), None if metadata is None else dict(metadata)))


def write_state(path: str | Path, state: Any) -> Path:
    """Write what `torch.save` makes of a state; a full disk is an OSError here, too."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return write_bytes(path, buffer.getvalue())


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


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and drafts of writers that died, once per process and folder."""
    key = os.path.abspath(folder)
    if fcntl is None or key in _swept:
        return
    _swept.add(key)
    with suppress(OSError):
        for item in folder.glob(f"{_PREFIX}*"):
            if time.time() - item.lstat().st_mtime > _SETTLED:
                _remove_abandoned(item)


def _remove_abandoned(item: Path) -> None:
    """Remove a temporary file or folder unless its writer still holds it."""
    with suppress(OSError):  # another process was faster, or it is held
        handle = os.open(item, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink()
        finally:
            os.close(handle)


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Keep a temporary file or folder locked, so that nobody takes it for a leftover."""
    if fcntl is None:
        yield
        return
    handle = os.open(temporary, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder on disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
