"""The statement under every table: what was simulated, where, on which images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from codtdq.lab.tables.entries import Entry
from codtdq.lab.tables.results import Row

_VERSIONS = ("codtdq", "torch", "numpy", "python")


def statement(entries: Sequence[Entry], what: str = "Simulated W4A4") -> list[str]:
    """Return the notes drawn from the rows themselves; whatever is mixed is said."""
    rows = [row for entry in entries for row in entry.rows]
    if not rows:
        return [f"{what}: no cell of this table has finished."]
    environments = [row.get("environment") or {} for row in rows]
    versions = [
        f"{name} {_joined(e.get(name, 'unknown') for e in environments)}" for name in _VERSIONS
    ]
    lines = [
        f"{what} (quantized and dequantized in float). Images: {_images(rows)}. "
        f"{_plural('seed', _distinct(row['seed'] for row in rows))}.",
        f"Machine: {_joined(_machine(e) for e in environments)}; {', '.join(versions)}.",
    ]
    learned = [row for row in rows if (row.get("info") or {}).get("reconstructs")]
    if learned:
        budgets = _joined(row["budget"] for row in learned)
        steps = sorted({int((row.get("calibration") or {}).get("steps") or 0) for row in learned})
        span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        lines.append(f"Methods that reconstruct: budget {budgets}, {span} optimisation steps.")
    mixed = _mixed(rows, environments)
    return lines + ([f"Mixed results: {'; '.join(mixed)}."] if mixed else [])


def _mixed(rows: Sequence[Row], environments: Sequence[dict[str, Any]]) -> list[str]:
    """Return everything that should be one and is not."""
    found = []
    budgets = _distinct(row["budget"] for row in rows if row["budget"])
    if len(budgets) > 1:
        found.append(f"budgets {', '.join(budgets)}")
    for name in _VERSIONS:
        versions = _distinct(e.get(name, "unknown") for e in environments)
        if len(versions) > 1:
            found.append(f"{name} {', '.join(versions)}")
    machines = _distinct(_machine(e) for e in environments)
    if len(machines) > 1:
        found.append(f"{len(machines)} machines or thread counts")
    floats: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:  # the seed of a stressed run also draws the stress
        floats.setdefault((row["model"], row["seed"] if row["stress"] else None), []).append(row)
    for (model, _), here in floats.items():
        if len(_hashes(here, "float_model")) > 1:
            found.append(f"different float models under the name {model}")
    for dataset in _distinct(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        counts = _distinct(row["count"] for row in here)
        if len(counts) > 1 or len(_hashes(here, "dataset")) > 1:
            found.append(f"different images of {dataset} ({' and '.join(counts)})")
    seeds = {(r["method"], r["dataset"]): set() for r in rows}  # type: dict[Any, set[int]]
    for row in rows:
        seeds[row["method"], row["dataset"]].add(row["seed"])
    counts = _distinct(sorted(len(found) for found in seeds.values()))
    if len(counts) > 1:
        found.append(f"{' and '.join(counts)} seeds per score; ± stands where there are several")
    return list(dict.fromkeys(found))


def _hashes(rows: Sequence[Row], name: str) -> list[str]:
    return _distinct(h for row in rows if (h := (row.get("hashes") or {}).get(name)))


def _images(rows: Sequence[Row]) -> str:
    return ", ".join(
        f"{_joined(sorted({r['count'] for r in rows if r['dataset'] == dataset}))} of {dataset}"
        for dataset in _distinct(row["dataset"] for row in rows)
    )


def _machine(environment: dict[str, Any]) -> str:
    if not environment:
        return "unknown"
    cpu = environment.get("cpu", "unknown CPU")
    counted = [(environment.get(name, "?"), name) for name in ("cores", "threads")]
    return ", ".join([cpu, *(f"{n} {name[:-1] if n == 1 else name}" for n, name in counted)])


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values))


def _joined(values: Iterable[Any]) -> str:
    return " / ".join(_distinct(values))


def _plural(word: str, values: Sequence[str]) -> str:
    ordered = sorted(values, key=lambda value: (len(value), value))
    return f"{word.capitalize()}{'s' if len(values) > 1 else ''} {', '.join(ordered)}"
