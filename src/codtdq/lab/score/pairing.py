"""Pairing maps with masks by name, and checking their sizes from file headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codtdq.data.pairing import describe_problems
from codtdq.errors import DataError
from codtdq.imagefile import header_size
from codtdq.lab.score.sources import Sources, published_part


@dataclass(frozen=True)
class Task:
    """One mask and the maps of all methods that are scored against it."""

    dataset: str
    name: str
    mask: Path
    maps: dict[str, Path]  # by method


def pair(
    sources: Sources, *, resize: bool = False, allow_missing: bool = False
) -> tuple[list[Task], list[str]]:
    """Return a task per mask and notes on what was left aside.

    resize: let maps differ in size from their mask. allow_missing: leave a mask without a map out
    of its method's scores, with a note, instead of raising DataError.
    """
    tasks: list[Task] = []
    notes = list(sources.notes)
    for dataset, files in sources.masks.items():
        masks = files.by_name()
        names, remarks = published_part(dataset, list(masks))
        notes += remarks
        maps: dict[str, dict[str, Path]] = {name: {} for name in names}
        for method, given in sources.maps.items():
            if dataset not in given:
                notes.append(f"{method}: no maps on {dataset}")
                continue
            found = given[dataset].by_name()
            missing = [name for name in names if name not in found]
            notes += _without_map(method, dataset, missing, len(names), allow_missing)
            extra = [name for name in found if name not in masks]
            if extra:
                notes.append(f"{method} on {dataset}: {len(extra)} maps without mask left out")
            for name in names:
                if name in found:
                    maps[name][method] = found[name]
        tasks += [Task(dataset, name, masks[name], maps[name]) for name in names if maps[name]]
    if not resize:
        _check_sizes(tasks)
    return tasks, notes


def _without_map(
    method: str, dataset: str, missing: Sequence[str], count: int, allowed: bool
) -> list[str]:
    if not missing:
        return []
    text = f"{method} on {dataset}: {describe_problems({'masks without map': list(missing)})}"
    if len(missing) == count:
        raise DataError(f"{text}; no name agrees: check the folder, prefix and suffix of the maps")
    if not allowed:
        raise DataError(f"{text}; write them, or pass --allow-missing to score the others")
    return [f"{text}; left out"]


def _check_sizes(tasks: Sequence[Task]) -> None:
    """Refuse maps of another size than their mask; all are counted before one is named."""
    wrong: dict[str, list[str]] = {}
    for task in tasks:
        width, height = header_size(task.mask)
        for method, path in task.maps.items():
            found = header_size(path)
            if found != (width, height):
                text = f"{task.name} {found[0]}x{found[1]} mask {width}x{height}"
                wrong.setdefault(f"{method} on {task.dataset}", []).append(text)
    if wrong:
        kind = "maps of another size than their mask"
        parts = [f"{who}: {describe_problems({kind: names})}" for who, names in wrong.items()]
        raise DataError(f"{'; '.join(parts)}; pass --resize to bring maps to the size of the mask")
