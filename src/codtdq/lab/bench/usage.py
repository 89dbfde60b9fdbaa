"""Seconds and memory of a stretch of work."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path


class Usage:
    """Wall time, CPU time of all threads and peak memory of a `with` block.

    peak_memory_mb: resident memory of the whole process at its highest. Where Linux lets the mark
    be reset it is that of the block, elsewhere that of the process so far.
    """

    wall = 0.0
    cpu = 0.0
    peak_memory_mb = 0.0

    def __enter__(self) -> Usage:
        _reset_peak()
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu
        self.peak_memory_mb = _peak_bytes() / 2**20


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the mark then stays that of the process, as documented


def _peak_bytes() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
