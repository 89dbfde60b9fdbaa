"""Score one part of a data set, and put the parts together again.

A part is the unit that travels between machines. Both engines cut at the same places and merge in
the same order, so that sums are rounded alike and results are equal to the last bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import nn

from codtdq.environment import environment
from codtdq.errors import DataError
from codtdq.evaluation import evaluate
from codtdq.io import write_json
from codtdq.lab.bench.cache import Shard, open_cached
from codtdq.lab.bench.cells import Cell
from codtdq.lab.bench.settings import RunSettings
from codtdq.lab.bench.usage import Usage
from codtdq.metrics import MetricSuite

# A multiple of the batch size: cutting leaves the composition of batches as it was.
SHARD_IMAGES = 512
PER_IMAGE = ("S", "wF", "E_mean", "F_mean", "MAE")


def shard_starts(images: int) -> list[int]:
    """Return the first image of each part."""
    return list(range(0, max(images, 1), SHARD_IMAGES))


def run_shard(
    model: nn.Module, cell: Cell, start: int, settings: RunSettings, directory: Path
) -> dict[str, Any]:
    """Score the part that begins at image `start`; JSON-ready.

    directory: where a part that is interrupted, or finished before its cell is, waits for resume.
    """
    source = settings.sources.get(cell.dataset, cell.dataset)
    dataset = open_cached(source, settings.data_root, cell.limit, settings.cache_dir)
    part = Shard(dataset, start, start + SHARD_IMAGES)
    name = hashlib.sha256(repr((cell.identity, start)).encode()).hexdigest()[:16]
    finished = directory / f"part-{name}.json"
    if finished.exists():
        return _read_part(finished)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with Usage() as usage:
        result = evaluate(model, part, state_file=directory / f"partial-{name}.json", resume=True)
    shard = {
        "started": began,
        "suite": result.suite.state_dict(),
        "hashes": part.hashes(),
        "timed_images": len(part) - result.resumed,
        "wall": usage.wall,
        "cpu": usage.cpu,
        "model": result.model_seconds,
        "peak_memory_mb": usage.peak_memory_mb,
        "settings": result.settings,
        "notes": result.notes,
        "environment": environment(),
    }
    write_json(finished, shard)
    return shard


def _read_part(path: Path) -> dict[str, Any]:
    """A part that was finished before an interruption."""
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
        MetricSuite.from_state(part["suite"])
        return dict(part)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, DataError) as error:
        raise DataError(f"{path} is damaged; delete it to score its images again") from error


def merge_shards(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the measured fields of a row, from all parts of its data set in order."""
    suite = MetricSuite()
    content = hashlib.sha256()
    for shard in shards:
        suite.merge(MetricSuite.from_state(shard["suite"]))
        content.update("".join(shard["hashes"]).encode())
    metrics = suite.compute()
    images = suite.per_image()
    columns: dict[str, list[Any]] = {"name": [image["name"] for image in images]}
    columns.update({key: [round(image[key], 5) for image in images] for key in PER_IMAGE})
    wall = sum(shard["wall"] for shard in shards)
    model = sum(shard["model"] for shard in shards)
    first = shards[0]
    return {
        "count": int(metrics.pop("count")),
        "metrics": metrics,
        "per_image": columns,
        "dataset_hash": content.hexdigest(),
        "environment": first["environment"],
        "evaluation": {k: v for k, v in first["settings"].items() if k != "images"},
        "notes": first["notes"],
        "wall_seconds": round(wall, 3),
        "cpu_seconds": round(sum(shard["cpu"] for shard in shards), 3),
        "timed_images": sum(shard["timed_images"] for shard in shards),
        "peak_memory_mb": round(max(shard["peak_memory_mb"] for shard in shards), 1),
        "harness_share": round(1 - model / wall, 4),
        "started": first["started"],
    }
