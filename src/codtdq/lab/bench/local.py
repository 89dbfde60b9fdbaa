"""The local engine: a fresh process per group, as many at a time as there are workers.

A fresh process keeps memory numbers honest and confines whatever goes wrong to its own group.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codtdq.lab.bench.cells import Cell, Group, row_identity
from codtdq.lab.bench.engine import Report
from codtdq.lab.bench.group import error_row
from codtdq.lab.bench.settings import RunSettings

STOP_SECONDS = 10.0  # what a stopped worker may take to save a half-done evaluation
POLL_SECONDS = 0.2
LOG = "log.txt"


@dataclass
class _Job:
    """A group that is being worked on."""

    group: Group
    directory: Path
    process: subprocess.Popen[bytes]
    open_cells: dict[tuple[Any, ...], Cell] = field(default_factory=dict)
    failed: bool = False

    def take(self, row: dict[str, Any], report: Report) -> None:
        """Note a row and pass it on."""
        self.open_cells.pop(row_identity(row), None)
        self.failed |= row["status"] != "ok"
        report.row(row)


class LocalEngine:
    """Runs groups in worker processes of this machine."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._events: queue.Queue[tuple[_Job, dict[str, Any] | None]] = queue.Queue()

    def run(
        self, groups: Sequence[Group], settings: RunSettings, images: dict[str, int], report: Report
    ) -> None:
        """Work through all groups, at most so many at a time as there are workers."""
        waiting = list(groups)
        running: list[_Job] = []
        try:
            while waiting or running:
                while waiting and len(running) < self._workers:
                    running.append(self._start(waiting.pop(0), settings, images))
                report.running([job.group.title for job in running])
                try:
                    job, row = self._events.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                if row is None:
                    running.remove(job)
                    self._end(job, settings, report)
                else:
                    job.take(row, report)
        finally:
            self._stop(running)
            while not self._events.empty():  # rows that arrived while stopping are finished ones
                job, row = self._events.get()
                if row is not None:
                    job.take(row, report)

    def _end(self, job: _Job, settings: RunSettings, report: Report) -> None:
        """A worker is gone: what it did not finish has failed."""
        code = job.process.wait()
        for cell in list(job.open_cells.values()):
            job.take(error_row(cell, _obituary(code, job.directory / LOG)), report)
        if not job.failed and not settings.keep_models:
            shutil.rmtree(job.directory, ignore_errors=True)

    def _start(self, group: Group, settings: RunSettings, images: dict[str, int]) -> _Job:
        directory = settings.state_dir / group.key
        directory.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        with (directory / LOG).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "codtdq.lab.bench.worker", str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                start_new_session=True,  # Ctrl-C reaches the parent alone
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        os.close(writing)
        job = _Job(group, directory, process, {cell.identity: cell for cell in group.cells})
        threading.Thread(target=self._listen, args=(job, reading), daemon=True).start()
        message = {
            "settings": settings.to_dict(),
            "cells": [cell.to_dict() for cell in group.cells],
            "images": images,
            "directory": str(directory),
        }
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()  # and left open: its end would stop the worker
        except BrokenPipeError:
            pass  # it died at once; the end of its rows says so
        return job

    def _listen(self, job: _Job, reading: int) -> None:
        """Pass rows on; the end of the stream is the end of the worker."""
        with os.fdopen(reading, "rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):  # a row that was cut off is no row
                    self._events.put((job, json.loads(line)))
        self._events.put((job, None))

    def _stop(self, running: Sequence[_Job]) -> None:
        for job in running:
            job.process.terminate()
        for job in running:
            try:
                job.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()


def _obituary(code: int, log: Path) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return f"worker died ({how})" + (f": {' '.join(lines[-1].split())}" if lines else "")
