"""Finished blocks on disk, so that a reconstruction that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CheckpointError
from codtdq.io import write_tensors
from codtdq.methods.rivals.blocks import Block, tensors_of
from codtdq.methods.workbench import Workbench
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme, WeightScheme, build_input_scheme, build_weight_scheme
from codtdq.schemes.filling import fill
from codtdq.tensorfile import read_tensors


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
            write_tensors(self._path(index), tensors, {"state": json.dumps(meta)})
        except OSError as error:
            raise CheckpointError(f"cannot write {self.directory}: {error.strerror}") from error

    def restore(self, index: int, block: Block) -> dict[str, Any] | None:
        """Give a block's operators their final state; its report, or None if it is not there."""
        path = self._path(index)
        if not path.is_file():
            return None
        try:
            tensors, metadata = read_tensors(path)
            meta = json.loads(metadata["state"])
            if meta["key"] != self.key or meta["block"] != block.name:
                return None
            report: dict[str, Any] = dict(meta["report"])
            read = {
                site.name: _read(meta["operators"][site.name], site, tensors)
                for site in block.sites
            }
        except (OSError, LookupError, TypeError, ValueError, CheckpointError) as error:
            raise CheckpointError(f"{path} is damaged; delete it to redo its block") from error
        for site in block.sites:  # only now: a damaged file changes nothing
            sim = site.module
            assert isinstance(sim, QuantOperator)
            sim.input_scheme, sim.weight_scheme = read[site.name]
            sim.refresh()
        return report

    def _path(self, index: int) -> Path:
        return self.directory / f"block-{index:04d}.safetensors"


def _read(
    entry: dict[str, Any], site: Site, tensors: dict[str, Tensor]
) -> tuple[InputScheme, WeightScheme]:
    """Both schemes of an operator, checked against its shape."""
    inputs, weight = build_input_scheme(entry["input"]), build_weight_scheme(entry["weight"])
    if tuple(weight.shape) != tuple(site.shape):
        raise CheckpointError(f"{site.name} has shape {list(weight.shape)}")
    for part, scheme in (("input", inputs), ("weight", weight)):
        stored = {
            name.removeprefix(f"{site.name}|{part}|"): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{site.name}|{part}|")
        }
        fill(scheme, stored.get, site.inputs)
    return inputs, weight


def _parts(sim: QuantOperator) -> list[tuple[str, nn.Module]]:
    return [("input", sim.input_scheme), ("weight", sim.weight_scheme)]
