"""What the Ray engine runs on the nodes of a cluster. Everything here travels by value."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codtdq.importing import import_file
from codtdq.lab.bench.cells import Cell, Group
from codtdq.lab.bench.prepare import FACTS, MODEL, load_group, prepare_group
from codtdq.lab.bench.settings import RunSettings
from codtdq.lab.bench.shard import run_shard
from codtdq.lab.text import one_line


def prepare_task(
    cells: list[dict[str, Any]], settings: dict[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """On a node: calibrate a group. Returns its facts (or an error) and its directory's bytes."""
    group = Group(tuple(Cell(**cell) for cell in cells))
    try:
        shared = _ready(settings)
        with tempfile.TemporaryDirectory(prefix="codtdq-bench-") as name:
            return prepare_group(group, shared, Path(name)), pack(Path(name))
    except Exception as error:
        return {"error": one_line(error)}, b""


def shard_task(
    cell: dict[str, Any], start: int, key: str, archive: bytes, settings: dict[str, Any]
) -> dict[str, Any]:
    """On a node: score one part of a cell. Returns the part, or an error."""
    try:
        shared = _ready(settings)
        model = _model(key, archive)
        with tempfile.TemporaryDirectory(prefix="codtdq-bench-") as name:
            return run_shard(model, Cell(**cell), start, shared, Path(name))
    except Exception as error:
        return {"error": one_line(error)}


_imported: set[str] = set()
_loaded: dict[tuple[str, int], nn.Module] = {}  # the last model: parts of a cell share it


def _ready(settings: dict[str, Any]) -> RunSettings:
    """One thread, and the user's files imported once per worker process."""
    torch.set_num_threads(1)
    shared = RunSettings.from_dict(settings)
    for file in shared.imports:
        if file not in _imported:
            import_file(file)
            _imported.add(file)
    return shared


def _model(key: str, archive: bytes) -> nn.Module:
    known = (key, hash(archive))
    if known not in _loaded:
        _loaded.clear()
        with tempfile.TemporaryDirectory(prefix="codtdq-bench-") as name:
            unpack(archive, Path(name))
            _loaded[known] = load_group(Path(name))
    return _loaded[known]


def pack(directory: Path) -> bytes:
    """Return the model and facts of a group's directory."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in (MODEL, FACTS):
            tar.add(directory / name, arcname=name)
    return stream.getvalue()


def unpack(archive: bytes, directory: Path) -> None:
    """The facts come last, so where they are the model is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
