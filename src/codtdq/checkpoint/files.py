"""The two files of a checkpoint: written atomically, read with one-line errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from codtdq.errors import CheckpointError
from codtdq.io import atomic_path, write_text

WEIGHTS, META = "model.safetensors", "codtdq.json"
NEXT = ".codtdq-next.json"  # the JSON of weights that are about to be put in place


def write(directory: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write both files so that at every moment the directory holds a whole checkpoint.

    The new JSON is put beside the old one first, then the weights are replaced, then the JSON. A
    reader who meets the new weights under the old JSON finds their own JSON waiting.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"{directory} is a file; a checkpoint needs a directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            with atomic_path(directory / WEIGHTS) as weights:
                save_file(tensors, str(weights), metadata={"format": "codtdq"})
                text = json.dumps({**meta, "sha256": sha256(weights)}, separators=(",", ":"))
                write_text(directory / NEXT, text + "\n")
            write_text(directory / META, text + "\n")
            (directory / NEXT).unlink()
    except (OSError, ValueError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CheckpointError(f"cannot write {directory}: {reason}") from error


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


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """JSON and tensors of one and the same checkpoint, the hash checked."""
    meta = read_meta(directory)
    try:
        return meta, read_tensors(directory, str(meta.get("sha256")))
    except CheckpointError:
        waiting = directory / NEXT  # a writer stopped, or is, between the two files
        candidates = [waiting] if waiting.is_file() else [directory / META]
        for path in candidates:
            other = _parse(path)
            if other.get("sha256") not in (None, meta.get("sha256")):
                return other, read_tensors(directory, str(other["sha256"]))
        raise


def read_meta(directory: Path) -> dict[str, Any]:
    """The JSON of a checkpoint."""
    if directory.is_file():
        kind = "a pickle" if _looks_pickled(directory) else "a file"
        raise CheckpointError(
            f"{directory} is {kind}; codtdq.load takes the directory that codtdq.save wrote"
        )
    path = directory / META
    if not path.is_file():
        raise CheckpointError(
            f"{directory} is no codtdq checkpoint: it has no {META} (written by codtdq.save)"
        )
    return _parse(path)


def _parse(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} is damaged: expected a JSON object")
    return meta


def read_tensors(directory: Path, expected_hash: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, after its hash was checked."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = directory / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{directory} has no {WEIGHTS}")
    if _looks_pickled(path):
        raise CheckpointError(f"{path} is a pickle, which can run code; only safetensors is read")
    found = sha256(path)
    if found != expected_hash:
        raise CheckpointError(
            f"{path} is truncated or was changed: its sha256 is {found[:12]}..., "
            f"{META} says {str(expected_hash)[:12]}..."
        )
    try:
        return load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def sha256(path: Path) -> str:
    """Hash of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _looks_pickled(path: Path) -> bool:
    """Pickles and torch zips by their first bytes. A safetensors file has its JSON at byte 8,
    and its first bytes, a length, may be anything.
    """
    with path.open("rb") as stream:
        head = stream.read(9)
    return head[8:9] != b"{" and head.startswith((b"PK", b"\x80"))
