"""The two files of a checkpoint: one pointer, and the tensors that it names by their hash.

`codtdq.json` is the pointer. The tensors lie in `model-HASH.safetensors`, where HASH begins their
own sha256. A save writes the tensors under their new name, then renames the new pointer over the
old one: that rename is the moment at which the new checkpoint exists. Until then the old one does,
whole. A load reads each file once; the bytes that were hashed are the bytes that the model has.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from codtdq.checkpoint import header
from codtdq.errors import CheckpointError
from codtdq.io import remove_leftovers, write_bytes, write_text
from codtdq.tensorfile import read_open

META = "codtdq.json"
WEIGHTS = "model-*.safetensors"  # whatever their hash
LARGEST_HEADER = 64 << 20  # bytes of JSON
_OLD_WEIGHTS = "model.safetensors"  # of formats 1 and 2
_TRIES = 8  # a load beside a busy writer follows the pointer so often


def write(directory: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write both files; at every moment the directory holds a whole checkpoint, old or new."""
    from safetensors.torch import save

    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"{directory} is a file; a checkpoint needs a directory")
    try:
        data = save(tensors, {"format": "codtdq"})
        digest = hashlib.sha256(data).hexdigest()
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            remove_leftovers(directory)
            target = directory / weights_name(digest)
            if not _holds(target, digest, len(data)):
                write_bytes(target, data)
            sealed = header.seal({**meta, "weights": target.name, "sha256": digest})
            write_text(directory / META, header.to_text(sealed))
            _remove_others(directory, target.name)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CheckpointError(f"cannot write {directory}: {reason}") from error


def weights_name(digest: str) -> str:
    """Name of the file of tensors with this sha256."""
    return f"model-{digest[:16]}.safetensors"


def _holds(path: Path, digest: str, size: int) -> bool:
    """Whether a file is there already and sound: saving the same twice writes no tensors."""
    return path.is_file() and path.stat().st_size == size and sha256(path) == digest


def _remove_others(directory: Path, current: str) -> None:
    """Remove tensors that no pointer names any more."""
    for path in directory.glob(WEIGHTS):
        if path.name != current and len(path.name) == len(current):
            path.unlink(missing_ok=True)
    old = directory / _OLD_WEIGHTS
    with contextlib.suppress(OSError):
        # an older format's file, told by what this project writes into its own
        with old.open("rb") as stream:
            ours = b'"format":"codtdq"' in stream.read(1 << 12)
        if ours:
            old.unlink()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One writer at a time, where the system has file locks."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read(
    directory: Path, limit: int | None = None, meta: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of one and the same checkpoint, both hashes checked.

    limit: bytes that the file of tensors may have. meta: the header, if `read_meta` gave it before.
    """
    meta = read_meta(directory) if meta is None else meta
    for _ in range(_TRIES):
        try:
            return meta, _read_tensors(directory / meta["weights"], meta["sha256"], limit)
        except FileNotFoundError:
            # a writer has moved the pointer on since it was read
            before, meta = meta["sha256"], read_meta(directory)
            if meta["sha256"] == before:
                break
    raise CheckpointError(f"{directory} has no {meta['weights']}, which {META} names")


def read_meta(directory: Path) -> dict[str, Any]:
    """The header of a checkpoint, sound in itself; its tensors are not looked at."""
    if directory.is_file():
        kind = "a pickle" if _looks_pickled(_first_bytes(directory)) else "a file"
        raise CheckpointError(
            f"{directory} is {kind}; codtdq.load takes the directory that codtdq.save wrote"
        )
    path = directory / META
    if not directory.exists():
        raise CheckpointError(f"{directory}: no such file or directory")
    if not path.is_file():
        raise CheckpointError(
            f"{directory} is no codtdq checkpoint: it has no {META} (written by codtdq.save)"
        )
    with _opened(path, LARGEST_HEADER) as (stream, size):
        text = stream.read(size)
    meta = header.parse(text, path)
    if meta["weights"] != weights_name(meta["sha256"]):
        raise CheckpointError(f"{path} names {meta['weights']!r}, which is not its sha256's file")
    return meta


def _read_tensors(path: Path, expected: str, limit: int | None) -> dict[str, Tensor]:
    digest, wrong = hashlib.sha256(), None
    tensors: dict[str, Tensor] = {}
    with _opened(path, limit) as (stream, size):
        if _looks_pickled(stream.read(9)):
            raise CheckpointError(
                f"{path} is a pickle, which can run code; only safetensors is read"
            )
        stream.seek(0)
        try:
            tensors = read_open(stream, size, digest.update)[0]
        except ValueError as error:
            wrong = error  # if these are the bytes that were written
            stream.seek(0)
            digest = _hash_of(stream)
    found = digest.hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path} is truncated or was changed: its sha256 is {found[:12]}..., "
            f"{META} says {expected[:12]}..."
        )
    if wrong is not None:
        raise CheckpointError(f"{path} cannot be read: {wrong}") from wrong
    return tensors


@contextlib.contextmanager
def _opened(path: Path, limit: int | None) -> Iterator[tuple[BinaryIO, int]]:
    """A file and its size, for one read; refused beforehand if its bytes are too many."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if limit is not None and size > limit:
                raise CheckpointError(f"{path} has {size} bytes; accepted: at most {limit}")
            yield stream, size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def sha256(path: Path) -> str:
    """Hash of a file."""
    with path.open("rb") as stream:
        return _hash_of(stream).hexdigest()


def _hash_of(stream: BinaryIO) -> Any:
    """Digest of what is left of a file, read in pieces."""
    digest = hashlib.sha256()
    while piece := stream.read(1 << 20):
        digest.update(piece)
    return digest


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(9)


def _looks_pickled(head: bytes) -> bool:
    """Pickles and torch zips by their first bytes. A safetensors file has its JSON at byte 8,
    and its first bytes, a length, may be anything.
    """
    return head[8:9] != b"{" and head.startswith((b"PK", b"\x80"))
