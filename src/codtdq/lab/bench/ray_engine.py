"""The Ray engine: the same groups as tasks of a cluster, large data sets cut into parts.

A quantized model travels as the bytes of its directory, so nodes need no common disk. A task that
is lost with its node is run again by Ray, and so is the calibration whose result was stored there.
Rows are written here, by the process that started the run: none is lost and none comes twice.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codtdq.environment import install_hint
from codtdq.errors import UnsupportedError
from codtdq.lab.bench.cells import Cell, Group
from codtdq.lab.bench.engine import Report
from codtdq.lab.bench.group import error_row, finished_row
from codtdq.lab.bench.prepare import read_facts
from codtdq.lab.bench.ray_tasks import pack, prepare_task, shard_task, unpack
from codtdq.lab.bench.settings import RunSettings
from codtdq.lab.bench.shard import shard_starts
from codtdq.lab.interrupt import terminable
from codtdq.lab.text import one_line

RETRIES = 5  # how many nodes a task may lose
POLL_SECONDS = 0.5
CONNECT_SECONDS = 5.0
_SPARE_GROUPS = 2  # submitted beyond what can run, so that a free processor finds work


class RayEngine:
    """Runs groups on a Ray cluster: `address`, or one of its own with so many workers."""

    def __init__(self, workers: int, address: str | None) -> None:
        # Ray reports usage over the network unless told not to, and reads this when imported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise UnsupportedError(
                f"--engine ray needs Ray, which is not installed; run: {install_hint('ray')}"
            ) from error
        self._ray, self._workers, self._address = ray, workers, address

    def run(
        self, groups: Sequence[Group], settings: RunSettings, images: dict[str, int], report: Report
    ) -> None:
        """Work through all groups."""
        if not groups:
            return
        own = not self._ray.is_initialized()
        if own:
            self._connect()
        try:
            _Schedule(self._ray, settings, images, report).run(list(groups))
        finally:
            if own:
                self._ray.shutdown()

    def _connect(self) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if self._address is None:
            options |= {"num_cpus": self._workers, "include_dashboard": False}
        else:
            _check_reachable(self._address)
        try:
            with terminable():
                self._ray.init(address=self._address or "local", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UnsupportedError(f"no Ray cluster: {one_line(error)}") from error


def _check_reachable(address: str) -> None:
    """Ray itself tries an address for minutes before it gives up."""
    host, separator, port = address.rpartition(":")
    if "://" in address or not separator or not port.isdigit():
        return  # a client address or "auto": Ray knows what to do with it
    error = _refusal(host, port)
    if error is not None:
        raise UnsupportedError(
            f"no Ray cluster at {address} ({error.strerror or error}); start one with `ray start "
            "--head`, or leave --address out"
        ) from error
    if _is_loopback(host):  # Ray puts the machine's own address in its place
        from ray.util import get_node_ip_address

        used = get_node_ip_address()
        error = _refusal(used, port)
        if error is not None:
            raise UnsupportedError(
                f"the Ray cluster at {address} listens on the loopback address only, and Ray "
                f"connects to {used}:{port} in its place ({error.strerror or error}); start it "
                f"with `ray start --head --node-ip-address {used} --port {port}`"
            ) from error


def _refusal(host: str, port: str) -> OSError | None:
    """Why nobody answers there, or None."""
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass
class _Running:
    """A group whose tasks have been submitted."""

    group: Group
    directory: Path  # of its state, on this machine
    model: Any = None  # ObjectRef of the bytes of its quantized model
    failed: bool = False
    facts: dict[str, Any] | None = None
    # parts of each cell: a result once it is there
    parts: dict[Cell, list[dict[str, Any] | None]] = field(default_factory=dict)


class _Schedule:
    """The loop that submits tasks and turns their results into rows."""

    def __init__(
        self, ray: Any, settings: RunSettings, images: dict[str, int], report: Report
    ) -> None:
        self._ray, self._settings, self._images, self._report = ray, settings, images, report
        options = {"num_cpus": 1, "max_retries": RETRIES}
        self._prepare = ray.remote(**options)(prepare_task)
        self._score = ray.remote(**options)(shard_task)
        self._running: list[_Running] = []
        # what each outstanding task is for: a group's calibration, or one part of a cell
        self._tasks: dict[Any, tuple[_Running, Cell | None, int]] = {}

    def run(self, waiting: list[Group]) -> None:
        try:
            while waiting or self._running:
                room = int(self._ray.cluster_resources().get("CPU", 1)) + _SPARE_GROUPS
                while waiting and len(self._running) < room:
                    self._submit(waiting.pop(0))
                self._report.running([running.group.title for running in self._running])
                ready, _ = self._ray.wait(list(self._tasks), timeout=POLL_SECONDS)
                for task in ready:
                    self._take(task)
        finally:  # after an interruption, or parts of a cell that has failed already
            for task in self._tasks:
                self._ray.cancel(task, force=True)

    def _submit(self, group: Group) -> None:
        running = _Running(group, self._settings.state_dir / group.key)
        self._running.append(running)
        facts = read_facts(running.directory, self._settings)
        if facts is not None:  # calibrated before an interruption
            running.model = self._ray.put(pack(running.directory))
            self._calibrated(running, facts)
            return
        cells = [cell.to_dict() for cell in group.cells]
        task = self._prepare.options(num_returns=2)
        made, running.model = task.remote(cells, self._settings.to_dict())
        self._tasks[made] = (running, None, 0)

    def _take(self, task: Any) -> None:
        running, cell, number = self._tasks.pop(task)
        try:
            result = self._ray.get(task)
            if cell is None and "error" not in result:  # kept for a resume, as locally
                unpack(self._ray.get(running.model), running.directory)
        except self._ray.exceptions.RayError as error:
            result = {"error": f"worker died: {one_line(error)}"}
        if cell is None:
            self._calibrated(running, result)
        elif cell in running.parts:  # else another part of the cell has failed already
            self._scored(running, cell, number, result)
        if running.facts is not None and not running.parts and running in self._running:
            self._running.remove(running)
            if not running.failed and not self._settings.keep_models:
                shutil.rmtree(running.directory, ignore_errors=True)

    def _calibrated(self, running: _Running, result: dict[str, Any]) -> None:
        running.facts = result
        if "error" in result:
            self._fail(running, running.group.cells, result["error"])
            return
        for cell in running.group.cells:
            starts = shard_starts(self._images[cell.dataset])
            running.parts[cell] = [None] * len(starts)
            for number, start in enumerate(starts):
                task = self._score.remote(
                    cell.to_dict(),
                    start,
                    running.group.key,
                    running.model,
                    self._settings.to_dict(),
                )
                self._tasks[task] = (running, cell, number)

    def _fail(self, running: _Running, cells: Sequence[Cell], message: str) -> None:
        running.failed = True
        for cell in cells:
            self._report.row(error_row(cell, message))

    def _scored(self, running: _Running, cell: Cell, number: int, result: dict[str, Any]) -> None:
        parts = running.parts[cell]
        parts[number] = result
        if "error" in result:
            del running.parts[cell]
            self._fail(running, [cell], result["error"])
            return
        finished = [part for part in parts if part is not None]
        if len(finished) == len(parts):
            del running.parts[cell]
            assert running.facts is not None
            self._report.row(finished_row(cell, running.facts, finished))
