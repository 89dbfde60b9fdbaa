"""Score many maps in several processes, and go on where an earlier run ended."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from codtdq.lab.score.pairing import Task, pair
from codtdq.lab.score.results import Cell
from codtdq.lab.score.sources import Sources
from codtdq.lab.score.worker import Measured, measure_tasks
from codtdq.progress import Progress

CHUNK = 8  # masks that a process takes at a time
QUEUED = 3  # chunks that wait per process
SAVE_EVERY = 30.0  # seconds

_Batch = tuple[Sequence[Task], list[dict[str, Measured]]]


@dataclass(frozen=True)
class Scored:
    """All cells, methods and data sets in the order in which they were given."""

    methods: list[str]
    datasets: list[str]
    cells: dict[tuple[str, str], Cell]  # by (method, data set); missing where there are no maps
    notes: list[str] = field(default_factory=list)
    resumed: int = 0  # maps that an earlier run had scored


def score(
    sources: Sources,
    *,
    workers: int = 1,
    resize: bool = False,
    allow_missing: bool = False,
    state_dir: Path | None = None,
) -> Scored:
    """Measure every map against its mask.

    workers: processes; 1 works in this one. resize: bring maps to the size of their mask, bilinear.
    state_dir: where finished work is kept, and looked for; a map that changed is scored again.
    """
    tasks, notes = pair(sources, resize=resize, allow_missing=allow_missing)
    cells: dict[tuple[str, str], Cell] = {}
    for task in tasks:
        for method in task.maps:
            cells.setdefault((method, task.dataset), Cell(method, task.dataset))
    if state_dir is not None:
        notes += [note for cell in cells.values() if (note := cell.load(_file(state_dir, cell)))]
    stamps = {
        id(task): {m: _stamp(task, path, resize) for m, path in task.maps.items()} for task in tasks
    }
    left, resumed = _unknown(tasks, stamps, cells)
    saved_at = time.monotonic()
    try:
        with Progress("maps", sum(len(task.maps) for task, _ in left)) as bar:
            marks = {(task.dataset, task.name): mark for task, mark in left}
            for batch, found in _measured([task for task, _ in left], workers, resize):
                for task, by_method in zip(batch, found):
                    for method, measured in by_method.items():
                        stamp = marks[task.dataset, task.name][method]
                        cells[method, task.dataset].add(task.name, stamp, measured)
                    bar.step(len(by_method))
                if state_dir is not None and time.monotonic() - saved_at > SAVE_EVERY:
                    _save(cells, state_dir)
                    saved_at = time.monotonic()
    finally:  # an interrupt or a damaged file loses nothing that is finished
        if state_dir is not None:
            _save(cells, state_dir)
    _keep_asked_for(tasks, cells)
    datasets = [name for name in sources.masks if any(key[1] == name for key in cells)]
    return Scored(list(sources.maps), datasets, cells, notes, resumed)


def _unknown(
    tasks: Sequence[Task], stamps: dict[int, dict[str, str]], cells: dict[tuple[str, str], Cell]
) -> tuple[list[tuple[Task, dict[str, str]]], int]:
    """Tasks with the maps that are still to be scored, and how many are not."""
    left, resumed = [], 0
    for task in tasks:
        marks = stamps[id(task)]
        open_maps = {
            method: path
            for method, path in task.maps.items()
            if not cells[method, task.dataset].known(task.name, marks[method])
        }
        resumed += len(task.maps) - len(open_maps)
        if open_maps:
            left.append((replace(task, maps=open_maps), marks))
    return left, resumed


def _measured(tasks: Sequence[Task], workers: int, resize: bool) -> Iterator[_Batch]:
    """Batches of tasks with their scores, as they get ready."""
    chunks = [tasks[start : start + CHUNK] for start in range(0, len(tasks), CHUNK)]
    if workers <= 1 or len(chunks) <= 1:
        for chunk in chunks:
            yield chunk, measure_tasks(chunk, resize)
        return
    with _pool(min(workers, len(chunks))) as pool:
        waiting: dict[Future[list[dict[str, Measured]]], Sequence[Task]] = {}
        for chunk in chunks:
            while len(waiting) >= QUEUED * workers:
                yield from _ready(waiting)
            waiting[pool.submit(measure_tasks, chunk, resize)] = chunk
        while waiting:
            yield from _ready(waiting)


def _ready(waiting: dict[Future[list[dict[str, Measured]]], Sequence[Task]]) -> Iterator[_Batch]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        yield waiting.pop(future), future.result()


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # fresh processes: a fork of one that has threads of its own may hang
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _stamp(task: Task, path: Path, resize: bool) -> str:
    """What tells whether files are still those that were scored."""
    marks = [f"{s.st_size}-{s.st_mtime_ns}" for s in (path.stat(), task.mask.stat())]
    return " ".join([str(path.resolve()), *marks, *(["resized"] if resize else [])])


def _file(state_dir: Path, cell: Cell) -> Path:
    dataset, method = (quote(word, safe=" ") for word in (cell.dataset, cell.method))
    return state_dir / f"{dataset}--{method}.npz"


def _save(cells: dict[tuple[str, str], Cell], state_dir: Path) -> None:
    for cell in cells.values():
        if cell.images:
            cell.save(_file(state_dir, cell))


def _keep_asked_for(tasks: Sequence[Task], cells: dict[tuple[str, str], Cell]) -> None:
    wanted: dict[tuple[str, str], set[str]] = {}
    for task in tasks:
        for method in task.maps:
            wanted.setdefault((method, task.dataset), set()).add(task.name)
    for key, cell in cells.items():
        cell.keep_only(wanted[key])
