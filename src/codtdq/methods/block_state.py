"""Finished blocks on disk, so that a reconstruction that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from codtdq.errors import CheckpointError
from codtdq.io import atomic_path
from codtdq.methods.rivals.blocks import Block, tensors_of
from codtdq.methods.workbench import Workbench
from codtdq.operators.quantized import QuantOperator
from codtdq.schemes.base import build_input_scheme, build_weight_scheme


def fingerprint(bench: Workbench, items: Iterable[Any], facts: dict[str, Any]) -> str:
    """Hash of everything that a reconstruction depends on: the model as it is installed, the
    images, settings, seed and budget.
    """
    digest = hashlib.sha256()
    known = {
        "config": bench.config.to_dict(),
        "seed": bench.seed,
        "budget": bench.budget,
        "torch": torch.__version__,
        **facts,
    }
    digest.update(json.dumps(known, sort_keys=True, default=str).encode())
    for name, tensor in bench.model.state_dict().items():
        digest.update(name.encode())
        _add(digest, tensor)
    for tensor in tensors_of(list(items)):
        _add(digest, tensor)
    return digest.hexdigest()


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(raw.numpy().tobytes())


class BlockStore:
    """One file per finished block under a directory that belongs to one fingerprint."""

    def __init__(self, directory: Path, key: str) -> None:
        self.directory = directory / f"blocks-{key[:16]}"
        self.key = key

    def save(self, index: int, block: Block, report: dict[str, Any]) -> None:
        """Write the final state of a block's operators; whole or not at all."""
        tensors: dict[str, Tensor] = {}
        operators: dict[str, Any] = {}
        for site in block.sites:
            sim = site.module
            assert isinstance(sim, QuantOperator)
            operators[site.name] = {
                "input": sim.input_scheme.record(),
                "weight": sim.weight_scheme.record(),
            }
            for part, module in _parts(sim):
                for leaf, buffer in module.named_buffers():
                    tensors[f"{site.name}|{part}|{leaf}"] = buffer.detach().contiguous().clone()
        meta = {"key": self.key, "block": block.name, "operators": operators, "report": report}
        try:
            with atomic_path(self._path(index)) as temporary:
                save_file(tensors, temporary, metadata={"state": json.dumps(meta)})
        except OSError as error:
            raise CheckpointError(f"cannot write {self.directory}: {error.strerror}") from error

    def restore(self, index: int, block: Block) -> dict[str, Any] | None:
        """Give a block's operators their final state; its report, or None if it is not there."""
        path = self._path(index)
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), framework="pt") as file:
                meta = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged; delete it to redo its block") from error
        if meta["key"] != self.key or meta["block"] != block.name:
            return None
        for site in block.sites:
            sim = site.module
            assert isinstance(sim, QuantOperator)
            entry = meta["operators"][site.name]
            sim.input_scheme = build_input_scheme(entry["input"])
            sim.weight_scheme = build_weight_scheme(entry["weight"])
            for part, module in _parts(sim):
                for leaf, _ in list(module.named_buffers()):
                    owner, _, name = leaf.rpartition(".")
                    value = tensors[f"{site.name}|{part}|{leaf}"]
                    module.get_submodule(owner)._buffers[name] = value
            sim.refresh()
        report: dict[str, Any] = meta["report"]
        return report

    def _path(self, index: int) -> Path:
        return self.directory / f"block-{index:04d}.safetensors"


def _parts(sim: QuantOperator) -> list[tuple[str, nn.Module]]:
    return [("input", sim.input_scheme), ("weight", sim.weight_scheme)]
