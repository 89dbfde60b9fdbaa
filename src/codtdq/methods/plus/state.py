"""FittedLayer operators on disk, so that a calibration that was stopped goes on where it was.

The choice of transforms is repeated on a new start (one pass, deterministic); what takes long, the
settling of each operator, is not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from codtdq.errors import CheckpointError
from codtdq.io import atomic_path
from codtdq.schemes.base import WeightScheme, build_weight_scheme


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
            with atomic_path(self._path(name)) as temporary:
                save_file(tensors, temporary, metadata={"state": json.dumps(meta)})
        except OSError as error:
            raise CheckpointError(f"cannot write {self.directory}: {error.strerror}") from error

    def restore(self, name: str) -> tuple[WeightScheme, Tensor | None, Any] | None:
        """(weight, bias, facts) of an operator that was settled before, or None."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), framework="pt") as file:
                meta = json.loads(file.metadata()["state"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}
            if meta["key"] != self.key or meta["name"] != name:
                return None
            store = build_weight_scheme(meta["store"])
            for leaf, _ in list(store.named_buffers()):
                store._buffers[leaf] = tensors[f"store.{leaf}"].clone()
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged; delete it to redo its operator") from error
        bias = tensors.get("bias")
        return store, None if bias is None else torch.clone(bias), meta["facts"]

    def _path(self, name: str) -> Path:
        return self.directory / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.safetensors"
