"""The deployment table of the paper (Real INT4 Deployment), on the native engine of this machine.

Weights on disk, images per second, latency, peak memory; the overhead of DSTG and of DCRP; the
share of operators and of multiply-accumulates that ran native; and where the stored bytes go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.lab.bench.speed.fresh_process import run_fresh
from codtdq.lab.bench.speed.latency import coverage, run_latency
from codtdq.lab.bench.speed.storage import storage_split
from codtdq.lab.bench.speed.subjects import CALIBRATION_IMAGES, Subjects, prepared
from codtdq.lab.bench.speed.timing import Timing, speedup

NAIVE, GROUPS, METHOD = "w4a4", "dstg-only", "cod-tdq"
RIVALS = ("ptq4sam", "repq-vit", "igq-vit")  # that the paper's table has beside these


def run_deployment(
    models: Sequence[str],
    *,
    rivals: Sequence[str] = (),
    batch: int = 4,
    threads: int = 1,
    seconds: float = 60.0,
    repeats: int = 3,
    checkpoints: dict[str, str] | None = None,
    untrained: bool = False,
    imports: Sequence[str] = (),
    calibration_images: int = CALIBRATION_IMAGES,
) -> list[dict[str, Any]]:
    """Measure one table per model.

    rivals: further methods, by name. batch: images per forward pass; 4 as in the paper.
    repeats: processes per peak memory. Methods that reconstruct take one step per block: neither
    times nor sizes depend on how long they learn.
    """
    results = []
    for model in models:
        with prepared(
            model,
            [NAIVE, *rivals, GROUPS, METHOD],
            checkpoint=(checkpoints or {}).get(model),
            untrained=untrained,
            write_fp32=True,
            calibration_images=calibration_images,
            budget="least",
        ) as subjects:
            results.append(_table(subjects, batch, threads, seconds, repeats, imports))
    return results


def _table(
    subjects: Subjects,
    batch: int,
    threads: int,
    seconds: float,
    repeats: int,
    imports: Sequence[str],
) -> dict[str, Any]:
    # processes first: the networks in this one then wait in memory, but do not run
    fresh = {
        row["candidate"]: row
        for row in run_fresh(
            subjects, batches=[batch], threads=[threads], repeats=repeats, imports=imports
        )
    }
    latency = run_latency(subjects, batches=[batch], threads=[threads], seconds=seconds)
    rows = []
    for row in latency["rows"]:
        name = row["candidate"]
        rows.append(
            {
                **row,
                "weight_bytes": subjects.members[name].bytes,
                "peak_bytes": fresh[name]["peak_bytes"],
                "peak_ratio": fresh[name]["peak_ratio"],
            }
        )
    return {
        "model": subjects.architecture,
        "weights": subjects.weights,
        "input_size": subjects.input_size,
        "batch": batch,
        "threads": threads,
        "calibration_images": subjects.calibration_images,
        "rows": rows,
        "overhead": overheads({row["candidate"]: row["samples_ms"] for row in rows}),
        "coverage": coverage(subjects)[METHOD],
        "storage": storage_split(subjects.members[METHOD].path).to_dict(),
    }


def overheads(samples: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return the extra time of each part of the method, relative to the network without it.

    samples: by method, sample i of all from the same round. Ratio of the medians, quartiles of the
    rounds' ratios.
    """

    def extra(with_it: str, without: str) -> dict[str, float]:
        longer, shorter = (Timing(tuple(samples[name]), ()) for name in (with_it, without))
        return {key: value - 1 for key, value in speedup(longer, shorter).to_dict().items()}

    return {
        "dstg": extra(GROUPS, NAIVE),
        "dcrp": extra(METHOD, GROUPS),
        "both": extra(METHOD, NAIVE),
    }
