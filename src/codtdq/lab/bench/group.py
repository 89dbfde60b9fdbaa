"""One group from start to end: calibrate once, score every data set, a row after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from codtdq.environment import environment
from codtdq.lab.bench.cells import Cell, Group
from codtdq.lab.bench.prepare import load_group, prepare_group
from codtdq.lab.bench.settings import RunSettings
from codtdq.lab.bench.shard import merge_shards, run_shard, shard_starts
from codtdq.lab.text import one_line

# What a row of a finished cell holds beyond its identity; a failed one has null there.
MEASURED = (
    "count",
    "metrics",
    "per_image",
    "bits",
    "info",
    "config",
    "calibration",
    "planted",
    "diagnosis",
    "evaluation",
    "notes",
    "method_notes",
    "wall_seconds",
    "cpu_seconds",
    "timed_images",
    "peak_memory_mb",
    "harness_share",
)


def run_group(
    group: Group, settings: RunSettings, images: dict[str, int], directory: Path
) -> Iterator[dict[str, Any]]:
    """Rows of a group, each as soon as its cell is finished; an error becomes a row of its own.

    images: length of each data set, by name.
    """
    try:
        facts = prepare_group(group, settings, directory)
        model = load_group(directory)
    except Exception as error:
        yield from (error_row(cell, one_line(error)) for cell in group.cells)
        return
    for cell in group.cells:
        try:
            shards = [
                run_shard(model, cell, start, settings, directory)
                for start in shard_starts(images[cell.dataset])
            ]
            row = finished_row(cell, facts, shards)
        except Exception as error:
            row = error_row(cell, one_line(error))
        yield row


def finished_row(
    cell: Cell, facts: dict[str, Any], shards: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the row of a cell that went well."""
    measured = merge_shards(shards)
    hashes = {**facts["hashes"], "dataset": measured.pop("dataset_hash")}
    parts = {**measured, **facts}
    return {
        **cell.to_dict(),
        "status": "ok",
        "error": None,
        **{name: parts[name] for name in MEASURED},
        "hashes": hashes,
        "environment": measured["environment"],
        "started": measured["started"],
    }


def error_row(cell: Cell, message: str) -> dict[str, Any]:
    """Return the row of a cell that failed, with the reason."""
    return {
        **cell.to_dict(),
        "status": "error",
        "error": message,
        **dict.fromkeys(MEASURED),
        "hashes": {"float_model": None, "quantized_model": None, "dataset": None},
        "environment": environment(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
