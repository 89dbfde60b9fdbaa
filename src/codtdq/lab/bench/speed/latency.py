"""Whole networks: native 4-bit methods and other runtimes against FP32 in eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.engine import backend_of
from codtdq.errors import ConfigError
from codtdq.lab.bench.speed import competitors
from codtdq.lab.bench.speed.coverage import Work, count_work, coverage_of
from codtdq.lab.bench.speed.subjects import BASELINE, Subjects
from codtdq.lab.bench.speed.timing import Timing, cpu_speedup, fixed_threads, interleaved, speedup
from codtdq.operators import quant_operators
from codtdq.progress import Progress

MIN_REPEATS = 3


def run_latency(
    subjects: Subjects,
    *,
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (1,),
    compare: Sequence[str] = (),
    seconds: float = 30.0,
) -> dict[str, Any]:
    """Time every subject and competitor at each batch size and thread count.

    seconds: for each combination of batch size and threads, without the time to build competitors.
    """
    for batch in batches:
        if batch < 1:
            raise ConfigError(f"batch is {batch}; accepted: 1 or more")
    competitors.check(compare)
    rows: list[dict[str, Any]] = []
    with Progress("latency", len(batches) * len(threads)) as bar:
        for batch in batches:
            images = subjects.images(batch)
            with competitors.Bench(subjects.baseline, images) as others:
                for count in threads:
                    with fixed_threads(count):
                        rows += _cell(subjects, images, count, others, compare, seconds)
                    bar.step(note=f"batch {batch}, {count} threads")
    return {
        "model": subjects.architecture,
        "weights": subjects.weights,
        "input_size": subjects.input_size,
        "rows": rows,
    }


def coverage(subjects: Subjects) -> dict[str, dict[str, Any]]:
    """Return the coverage by method, and the operators that stay simulated."""
    work = work_of(subjects)
    result = {}
    for name, subject in subjects.members.items():
        if name == BASELINE:
            continue
        record = backend_of(subject.model)
        quantized = set(quant_operators(subject.model)) | set(quant_operators(subject.model))
        result[name] = {
            **coverage_of(work, quantized, record).to_dict(),
            "execution": subject.execution,
            "fallbacks": dict(record.fallbacks) if record else {},
        }
    return result


def work_of(subjects: Subjects) -> Work:
    """Return the operators and MACs of one image."""
    return count_work(subjects.baseline, subjects.images(1))


def _cell(
    subjects: Subjects,
    images: Tensor,
    threads: int,
    others: competitors.Bench,
    compare: Sequence[str],
    seconds: float,
) -> list[dict[str, Any]]:
    built = {name: others.build(name, threads) for name in compare}
    candidates = {name: forward(s.model, images) for name, s in subjects.members.items()}
    candidates |= {name: other.run for name, other in built.items() if other.run is not None}
    timings = interleaved(candidates, seconds=seconds, min_repeats=MIN_REPEATS)
    rows = []
    for name, timing in timings.items():
        row = _row(name, timing, timings[BASELINE], images.shape[0], threads)
        if name in subjects.members:
            subject = subjects.members[name]
            row["execution"] = subject.execution
            row["weight_bytes"] = subject.bytes if subject.path.exists() else None
        else:
            row |= {
                "execution": built[name].runtime,
                "build_seconds": built[name].build_seconds,
                "difference": built[name].difference,
            }
        rows.append(row)
    rows += [
        {"candidate": name, "batch": images.shape[0], "threads": threads, "skipped": other.reason}
        for name, other in built.items()
        if other.run is None
    ]
    return rows


def forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """Return one forward pass as a call without arguments."""

    def run() -> object:
        with torch.inference_mode():
            return model(images)

    return run


def _row(name: str, timing: Timing, baseline: Timing, batch: int, threads: int) -> dict[str, Any]:
    return {
        "candidate": name,
        "batch": batch,
        "threads": threads,
        **timing.to_dict(),
        "samples_ms": [1e3 * wall for wall in timing.walls],
        "ms_per_image": 1e3 * timing.wall.median / batch,
        "images_per_second": batch / timing.wall.median,
        "speedup": speedup(baseline, timing).to_dict(),
        "cpu_speedup": cpu_speedup(baseline, timing),
    }
