"""The grid of a benchmark: cells, their identity, and groups of cells that share one model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

IDENTITY = ("model", "method", "dataset", "seed", "stress", "budget", "limit")


@dataclass(frozen=True)
class Cell:
    """One number in a table: a method on a model, scored on a data set.

    stress: None, or the name of what was planted in the float model before quantizing it.
    limit: at most so many images of the data set; None is all of them.
    """

    model: str
    method: str
    dataset: str
    seed: int = 0
    stress: str | None = None
    budget: str = "fast"
    limit: int | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes two rows the same cell."""
        return tuple(getattr(self, name) for name in IDENTITY)

    def to_dict(self) -> dict[str, Any]:
        """Return the first fields of a row."""
        return asdict(self)


@dataclass(frozen=True)
class Group:
    """Cells that differ only in their data set: one model, calibrated once."""

    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        """Any of its cells: all agree in everything but the data set."""
        return self.cells[0]

    @property
    def title(self) -> str:
        """For people."""
        cell = self.first
        parts = [cell.model, cell.method]
        parts += [f"seed {cell.seed}"] if cell.seed else []
        return "/".join(parts + ([cell.stress] if cell.stress else []))

    @property
    def key(self) -> str:
        """A file name of its own."""
        cell = self.first
        parts = (cell.model, cell.method, f"seed{cell.seed}", cell.stress or "plain", cell.budget)
        return "__".join(re.sub(r"[^\w.+-]", "_", part) for part in parts)


def row_identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a row that was read back."""
    return tuple(row.get(name) for name in IDENTITY)


def make_grid(
    models: Iterable[str],
    methods: Iterable[str],
    datasets: Iterable[str],
    *,
    seeds: Iterable[int] = (0,),
    stress: Iterable[str | None] = (None,),
    budget: str = "fast",
    limit: int | None = None,
) -> list[Cell]:
    """Return every combination, once, the data set changing fastest."""
    cells = [
        Cell(model, method, dataset, seed, planted, budget, limit)
        for model, planted, method, seed, dataset in itertools.product(
            models, stress, methods, seeds, datasets
        )
    ]
    return list(dict.fromkeys(cells))


def make_groups(cells: Sequence[Cell], slow_methods: Sequence[str] = ()) -> list[Group]:
    """Gather cells that share a model; groups of `slow_methods` come first.

    Starting with the longest keeps all workers busy until the end.
    """
    by_model: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        shared = (cell.model, cell.method, cell.seed, cell.stress, cell.budget)
        by_model.setdefault(shared, []).append(cell)
    groups = [Group(tuple(members)) for members in by_model.values()]
    rank = {name: position for position, name in enumerate(slow_methods)}
    return sorted(groups, key=lambda group: rank.get(group.first.method, len(rank)))
