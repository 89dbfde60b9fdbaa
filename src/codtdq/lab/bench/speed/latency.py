"""Whole networks: native 4-bit methods and other runtimes against FP32 in eager torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.data.dataset import Dataset
from codtdq.engine import backend_of
from codtdq.errors import ConfigError
from codtdq.evaluation.predict import info_of, mask_logits
from codtdq.lab.bench.speed import competitors
from codtdq.lab.bench.speed.accuracy import require_trained, score_candidates
from codtdq.lab.bench.speed.coverage import Work, count_work, coverage_of
from codtdq.lab.bench.speed.subjects import BASELINE, Subject, Subjects
from codtdq.lab.bench.speed.timing import Timing, cpu_speedup, fixed_threads, interleaved, speedup
from codtdq.operators import quant_operators
from codtdq.progress import Progress

MIN_REPEATS = 3


@dataclass(frozen=True)
class Wishes:
    """What a run measures beside the subjects' own times."""

    compare: Sequence[str] = ()
    seconds: float = 30.0
    accuracy: Dataset | None = None  # images with masks, on which every candidate is scored


def run_latency(
    subjects: Subjects,
    *,
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (1,),
    compare: Sequence[str] = (),
    seconds: float = 30.0,
    accuracy: Dataset | None = None,
) -> dict[str, Any]:
    """Time every subject and competitor at each batch size and thread count.

    seconds: for each combination of batch size and threads, without the time to build competitors.
    accuracy: score every candidate on these images, one at a time.
    """
    for batch in batches:
        if batch < 1:
            raise ConfigError(f"batch is {batch}; accepted: 1 or more")
    if accuracy is not None:
        require_trained(subjects.architecture, subjects.trained)
    competitors.check(compare)
    wishes = Wishes(competitors.expand(compare), seconds, accuracy)
    rows: list[dict[str, Any]] = []
    scores: dict[str, dict[str, Any]] = {}
    with Progress("latency", len(batches) * len(threads)) as bar:
        for batch in batches:
            images = subjects.images(batch)
            calibration = subjects.calibration(batch)
            with competitors.Bench(subjects.baseline, images, calibration) as others:
                for count in threads:
                    with fixed_threads(count):
                        built = {name: others.build(name, count) for name in wishes.compare}
                        rows += _cell(subjects, images, count, built, wishes)
                        # networks in files have a fixed shape: masks come from batch 1
                        if accuracy is not None and batch == 1 and not scores:
                            scores = _scores(subjects, built, accuracy)
                    bar.step(note=f"batch {batch}, {count} threads")
    if accuracy is not None and not scores:
        scores = _scores_apart(subjects, threads[0], wishes)
    for row in rows:
        if row["candidate"] in scores:
            row["accuracy"] = scores[row["candidate"]]
    return {
        "model": subjects.architecture,
        "weights": subjects.weights,
        "input_size": subjects.input_size,
        "calibration_images": subjects.calibration_images,
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
        quantized = set(quant_operators(subject.model))
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
    built: dict[str, competitors.Competitor],
    wishes: Wishes,
) -> list[dict[str, Any]]:
    candidates = {name: forward(s.model, images) for name, s in subjects.members.items()}
    candidates |= {name: other.run for name, other in built.items() if other.run is not None}
    timings = interleaved(candidates, seconds=wishes.seconds, min_repeats=MIN_REPEATS)
    rows = []
    for name, timing in timings.items():
        row = _row(name, timing, timings[BASELINE], images.shape[0], threads)
        about = (
            _about_subject(subjects, name, images)
            if name in subjects.members
            else _about_competitor(built[name], subjects.members[BASELINE])
        )
        rows.append(row | about)
    rows += [
        {"candidate": name, "batch": images.shape[0], "threads": threads, "skipped": other.reason}
        for name, other in built.items()
        if other.run is None
    ]
    return rows


def _about_subject(subjects: Subjects, name: str, images: Tensor) -> dict[str, Any]:
    subject = subjects.members[name]
    about = {
        "execution": subject.execution,
        "precision": subject.precision,
        "weight_bytes": subject.bytes if subject.path.exists() else None,
    }
    if name == BASELINE:
        return about
    info = info_of(subjects.baseline)
    found, expected = (mask_logits(m, info, images) for m in (subject.model, subjects.baseline))
    difference = float((found - expected).norm() / expected.norm())
    return {**about, "build_seconds": subject.build_seconds, "difference": difference}


def _about_competitor(other: competitors.Competitor, baseline: Subject) -> dict[str, Any]:
    assert other.runtime is not None
    own = other.bytes
    shared = baseline.bytes if baseline.path.exists() else None
    return {
        "execution": other.runtime.what,
        "precision": other.runtime.precision,
        "note": other.runtime.note,
        "weight_bytes": shared if own is None else own,
        "build_seconds": other.build_seconds,
        # None: not finite, which JSON cannot hold
        "difference": other.difference if math.isfinite(other.difference) else None,
    }


def _scores(
    subjects: Subjects, built: dict[str, competitors.Competitor], dataset: Dataset
) -> dict[str, dict[str, Any]]:
    info = info_of(subjects.baseline)

    def logits(model: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda images: mask_logits(model, info, images)

    candidates = {name: logits(s.model) for name, s in subjects.members.items()}
    candidates |= {name: other.logits for name, other in built.items() if other.logits is not None}
    return score_candidates(candidates, info, dataset)


def _scores_apart(subjects: Subjects, threads: int, wishes: Wishes) -> dict[str, dict[str, Any]]:
    """Score candidates where batch 1 was not timed."""
    assert wishes.accuracy is not None
    bench = competitors.Bench(subjects.baseline, subjects.images(1), subjects.calibration(1))
    with bench as others, fixed_threads(threads):
        built = {name: others.build(name, threads) for name in wishes.compare}
        return _scores(subjects, built, wishes.accuracy)


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
