"""Scores of many methods under one protocol, cell by cell, resumable."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codtdq.budgets import BUDGETS
from codtdq.data import open_images
from codtdq.data.datasets import split_names, synthetic
from codtdq.errors import ConfigError
from codtdq.evaluation.calibration import CALIBRATION_IMAGES
from codtdq.lab.bench.cells import Group, make_grid, make_groups, row_identity
from codtdq.lab.bench.check import at_least_one, check_weights, known_names, open_all
from codtdq.lab.bench.directory import run_directory
from codtdq.lab.bench.engine import Engine
from codtdq.lab.bench.local import LocalEngine
from codtdq.lab.bench.rows import ResultsFile, read_results
from codtdq.lab.bench.settings import STRESSES, RunSettings
from codtdq.lab.interrupt import interrupts_wait
from codtdq.models import list_models
from codtdq.progress import Progress
from codtdq.resolve import CALIBRATION_SPLIT

DEFAULT_MODELS = ("cfrn-small", "escnet-small")
DEFAULT_DATASETS = ("camosynth",)
ENGINES = ("local", "ray")


def run_accuracy(
    out: str | Path,
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    methods: Sequence[str] = ("all",),
    datasets: Sequence[str] = DEFAULT_DATASETS,
    data_root: str | Path | None = None,
    limit: int | None = None,
    seeds: Sequence[int] = (0,),
    stress: Sequence[str] = ("none",),
    budget: str = "fast",
    resume: bool = False,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    calibration: str = CALIBRATION_SPLIT,
    calibration_images: int = CALIBRATION_IMAGES,
    checkpoints: Mapping[str, str | Path] | None = None,
    untrained: bool = False,
    imports: Sequence[str | Path] = (),
    keep_models: bool = False,
) -> list[dict[str, Any]]:
    """Score every (model, method, data set, seed, stress) and write `out`/results.jsonl.

    Returns the rows of this grid, failed ones (`status` "error") among them.
    methods: names of `codtdq.methods.list_methods`, or "all". datasets: as `open_dataset` takes
    them, below `data_root`; "camosynth" stands for its four test splits.
    stress: "none", "outliers" or both: outlier channels planted in the float model first.
    resume: go on with an interrupted run; finished cells are skipped, failed ones tried again.
    engine: "local" (worker processes) or "ray" (a cluster; `address` for one that runs already).
    imports: Python files that every worker runs first, e.g. to register a model.
    """
    from codtdq.methods import list_methods, method_info

    chosen = list_methods() if list(methods) == ["all"] else list(methods)
    models = known_names("model", models, list_models())
    chosen = known_names("method", chosen, list_methods())
    stress = known_names("stress", stress, STRESSES)
    known_names("budget", [budget], BUDGETS)
    known_names("engine", [engine], ENGINES)
    for what, number in (
        ("limit", limit),
        ("workers", workers),
        ("calibration images", calibration_images),
    ):
        at_least_one(what, number)
    root = str(Path(data_root).resolve()) if data_root is not None else None
    sources, images = open_all(datasets, root, limit)
    open_images(calibration, root, limit=calibration_images)  # a wrong name must fail now
    settings = RunSettings(
        out=str(Path(out).resolve()),
        data_root=root,
        sources=sources,
        calibration=_absolute(calibration),
        calibration_images=calibration_images,
        checkpoints=check_weights(models, checkpoints or {}, untrained),
        untrained=untrained,
        imports=tuple(str(Path(file).resolve()) for file in imports),
        keep_models=keep_models,
    )
    runner = _engine(engine, workers or _cores(), address)
    cells = make_grid(
        models,
        chosen,
        images,
        seeds=seeds,
        budget=budget,
        limit=limit,
        stress=[None if name == "none" else name for name in stress],
    )
    slow = [name for name in chosen if method_info(name).reconstructs]
    with run_directory(settings, resume=resume) as results, ResultsFile(results) as file:
        finished = {row_identity(row) for row in read_results(results) if row["status"] == "ok"}
        todo = [cell for cell in cells if cell.identity not in finished]
        groups = make_groups(todo, slow)
        if not keep_models:
            _remove_finished(settings.state_dir, make_groups(cells), groups)
        with Progress("cells", len(cells)) as bar:
            bar.step(len(cells) - len(todo))
            runner.run(groups, settings, images, _Report(file, bar))
    wanted = {cell.identity: position for position, cell in enumerate(cells)}
    rows = [row for row in read_results(results) if row_identity(row) in wanted]
    return sorted(rows, key=lambda row: wanted[row_identity(row)])


def _remove_finished(state: Path, known: Sequence[Group], todo: Sequence[Group]) -> None:
    """Remove what a run left that was killed after a group's last row and before its clean-up."""
    for key in {group.key for group in known} - {group.key for group in todo}:
        shutil.rmtree(state / key, ignore_errors=True)


class _Report:
    """Rows go to the file, the rest to the progress line."""

    def __init__(self, file: ResultsFile, bar: Progress) -> None:
        self._file, self._bar, self._titles = file, bar, ""

    def row(self, row: dict[str, Any]) -> None:
        with interrupts_wait():
            self._file.append(row)
        self._bar.step(note=self._titles)

    def running(self, titles: Sequence[str]) -> None:
        self._titles = ", ".join(titles)
        self._bar.step(0, self._titles)


def _absolute(spec: str) -> str:
    """Name folders in full: a worker may run somewhere else."""
    return ",".join(
        name if synthetic(name) or not Path(name).exists() else str(Path(name).resolve())
        for name in split_names(spec)
    )


def _engine(name: str, workers: int, address: str | None) -> Engine:
    if name == "ray":
        from codtdq.lab.bench.ray_engine import RayEngine

        return RayEngine(workers, address)
    if address is not None:
        raise ConfigError("--address is that of a Ray cluster; add --engine ray")
    return LocalEngine(workers)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
