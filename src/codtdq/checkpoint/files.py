"""The two files of a checkpoint: written atomically, read with one-line errors."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from codtdq.errors import CheckpointError

FILE_MODE = 0o644
WEIGHTS, META = "model.safetensors", "codtdq.json"


def write(directory: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write both files. The JSON comes last and names the hash: it is the commit."""
    from safetensors.torch import save_file

    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"{directory} is a file; a checkpoint needs a directory")
    directory.mkdir(parents=True, exist_ok=True)
    weights = _temporary(directory)
    try:
        save_file(tensors, str(weights), metadata={"format": "codtdq"})
        os.chmod(weights, FILE_MODE)  # save_file makes the file anew, for its owner only
        meta = {**meta, "sha256": sha256(weights)}
        info = _temporary(directory)
        try:
            info.write_text(json.dumps(meta, separators=(",", ":")) + "\n", encoding="utf-8")
            os.replace(weights, directory / WEIGHTS)
            os.replace(info, directory / META)
        finally:
            info.unlink(missing_ok=True)
    finally:
        weights.unlink(missing_ok=True)


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
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
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


def _temporary(directory: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=directory, prefix=".codtdq-", suffix=".tmp")
    os.close(handle)
    os.chmod(name, FILE_MODE)
    return Path(name)


def _looks_pickled(path: Path) -> bool:
    """Pickles and torch zips by their first bytes. A safetensors file has its JSON at byte 8,
    and its first bytes, a length, may be anything.
    """
    with path.open("rb") as stream:
        head = stream.read(9)
    return head[8:9] != b"{" and head.startswith((b"PK", b"\x80"))
