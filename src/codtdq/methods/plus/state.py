"""FittedLayer operators on disk, so that a calibration that was stopped goes on where it was.

The choice of transforms is repeated on a new start (one pass, deterministic); what takes long, the
settling of each operator, is not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from codtdq.errors import CheckpointError
from codtdq.io import write_tensors
from codtdq.schemes.base import WeightScheme, build_weight_scheme
from codtdq.schemes.filling import fill
from codtdq.tensorfile import read_tensors


class FittedFiles:
    """One file per operator under a directory that belongs to one fingerprint."""

    def __init__(self, directory: Path, key: str) -> None:
        self.directory, self.key = directory / f"plus-{key[:16]}", key

    def save(self, name: str, store: WeightScheme, bias: Tensor | None, facts: Any) -> None:
        """Write one operator; whole or not at all."""
        tensors = {f"store.{n}": b.detach().contiguous() for n, b in store.named_buffers()}
        if bias is not None:
            tensors["bias"] = bias.detach().contiguous()
        meta = {"key": self.key, "name": name, "store": store.record(), "facts": facts}
        try:
            write_tensors(self._path(name), tensors, {"state": json.dumps(meta)})
        except OSError as error:
            raise CheckpointError(f"cannot write {self.directory}: {error.strerror}") from error

    def restore(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[WeightScheme, Tensor | None, dict[str, Any]] | None:
        """(weight, bias, facts) of an operator of this shape that was settled before, or None."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            tensors, metadata = read_tensors(path)
            meta = json.loads(metadata["state"])
            if meta["key"] != self.key or meta["name"] != name:
                return None
            store, bias = build_weight_scheme(meta["store"]), tensors.get("bias")
            fill(store, lambda leaf: tensors.get(f"store.{leaf}"), store.shape[1])
            if tuple(store.shape) != shape or (bias is not None and bias.shape != shape[:1]):
                raise CheckpointError(f"another shape than {list(shape)}")
            return store, bias, {**meta["facts"], "streams": int(meta["facts"]["streams"])}
        except (OSError, LookupError, TypeError, ValueError, CheckpointError) as error:
            raise CheckpointError(f"{path} is damaged; delete it to redo its operator") from error

    def _path(self, name: str) -> Path:
        return self.directory / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.safetensors"
