"""Peak memory and time to the first mask, each in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codtdq.errors import CodtdqError, UnsupportedError
from codtdq.exporting.program import export_program
from codtdq.lab.bench.speed.subjects import BASELINE, Subject, Subjects
from codtdq.progress import Progress

CHILD = Path(__file__).with_name("fresh_child.py")
PROGRAM = ", program file"
FIELDS = (
    "first_mask_seconds",
    "import_seconds",
    "load_seconds",
    "predict_seconds",
    "cpu_seconds",
    "import_bytes",
    "peak_bytes",
)


def run_fresh(
    subjects: Subjects,
    *,
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (1,),
    repeats: int = 3,
    imports: Sequence[str] = (),
    programs: bool = False,
) -> list[dict[str, Any]]:
    """A row per subject, batch size and thread count: medians over processes, taken in turns.

    imports: Python files that register the model, as on the command line.
    programs: what runs on the engine has a second row, of its program file in the runtime, which
        takes images one by one.
    """
    if not Path("/proc/self/status").exists():
        raise UnsupportedError("peak memory is read from /proc/self/status, which is not here")
    rows = []
    with tempfile.TemporaryDirectory(prefix="codtdq-") as folder:
        candidates = {
            name: _settings(subjects, subject, imports)
            for name, subject in subjects.members.items()
        }
        if programs:
            candidates |= _programs(subjects, Path(folder))
        total = len(batches) * len(threads) * repeats * len(candidates)
        with Progress("processes", total) as bar:
            for batch in batches:
                for count in threads:
                    found: dict[str, list[dict[str, float]]] = {name: [] for name in candidates}
                    for _ in range(repeats):
                        for name, settings in candidates.items():
                            found[name].append(
                                run_child({**settings, "batch": batch, "threads": count})
                            )
                            bar.step(note=name)
                    rows += _rows(found, batch, count)
    return rows


def run_child(settings: dict[str, Any]) -> dict[str, float]:
    """One process; `first_mask_seconds` counts from before its start to the arrival of the mask."""
    # -c keeps this folder out of the child's module search path
    command = [sys.executable, "-c", CHILD.read_text(encoding="utf-8"), json.dumps(settings)]
    # an installed package has its bytecode; without this, a source tree may be compiled every time
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:  # a full pipe would block it
        begin = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            seconds = time.perf_counter() - begin
        errors.seek(0)
        complaint = errors.read().strip().splitlines() or ["no output"]
    if child.returncode or not line:
        raise CodtdqError(f"the process that loads {settings['path']} failed: {complaint[-1]}")
    return {"first_mask_seconds": seconds, **json.loads(line)}


def _settings(subjects: Subjects, subject: Subject, imports: Sequence[str]) -> dict[str, Any]:
    return {
        "program": False,
        "architecture": subjects.architecture,
        "path": str(subject.path),
        "packed": subject.name != BASELINE,
        "backend": "cpu" if _is_native(subject) else "reference",
        "size": subjects.input_size,
        "imports": [str(Path(file).resolve()) for file in imports],
    }


def _is_native(subject: Subject) -> bool:
    return subject.execution.startswith("native")


def _programs(subjects: Subjects, folder: Path) -> dict[str, dict[str, Any]]:
    """Settings of program files, which are written here."""
    found = {}
    for number, (name, subject) in enumerate(subjects.members.items()):
        if not _is_native(subject):
            continue
        side = subjects.input_size
        path = folder / f"{number}.codtdq"
        export_program(subject.model, path, sizes=[(side, side)], input_size=side)
        found[f"{name}{PROGRAM}"] = {"program": True, "path": str(path), "size": side}
    return found


def _rows(
    found: dict[str, list[dict[str, float]]], batch: int, threads: int
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, reports in found.items():
        middle = {key: statistics.median(report[key] for report in reports) for key in FIELDS}
        middle["after_imports_seconds"] = statistics.median(
            report["load_seconds"] + report["predict_seconds"] for report in reports
        )
        rows.append(
            {"candidate": name, "batch": batch, "threads": threads, **middle, "runs": reports}
        )
    reference = rows[0]
    for row in rows:
        row["peak_ratio"] = reference["peak_bytes"] / row["peak_bytes"]
        row["first_mask_speedup"] = reference["first_mask_seconds"] / row["first_mask_seconds"]
        row["after_imports_speedup"] = (
            reference["after_imports_seconds"] / row["after_imports_seconds"]
        )
    return rows
