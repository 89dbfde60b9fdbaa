"""A worker process of the local engine: `python -m codtdq.lab.bench.worker FD`.

The job comes as one JSON line on stdin; rows leave as JSON lines on file descriptor FD, so that
whatever a user's code prints cannot get between them. Stdin stays open as long as the parent
lives: its end tells a worker to stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


def main() -> None:
    """Run one group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, _stop)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()

    import torch

    from codtdq.importing import import_file
    from codtdq.lab.bench.cells import Cell, Group
    from codtdq.lab.bench.group import run_group
    from codtdq.lab.bench.settings import RunSettings

    torch.set_num_threads(1)
    settings = RunSettings.from_dict(job["settings"])
    for file in settings.imports:
        import_file(file)
    group = Group(tuple(Cell(**cell) for cell in job["cells"]))
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as rows:
        for row in run_group(group, settings, job["images"], Path(job["directory"])):
            rows.write(json.dumps(row, allow_nan=False) + "\n")
            rows.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave through the stack, so that a half-done evaluation saves its images."""
    raise SystemExit(128 + number)


def _stop_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
