"""The directory of a run: never overwritten silently, never written by two runs at once."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codtdq.errors import ConfigError
from codtdq.io import write_json
from codtdq.lab.bench.rows import RESULTS
from codtdq.lab.bench.settings import RunSettings

RUN = "run.json"


@contextmanager
def run_directory(settings: RunSettings, *, resume: bool) -> Iterator[Path]:
    """Open the directory of a run and hold it; yields the path of its results file.

    Quantized models of unfinished groups stay for a resume; cached images do not.
    """
    out = Path(settings.out)
    results = out / RESULTS
    if results.exists() and not resume:
        raise ConfigError(
            f"{results} exists; add --resume to finish that run, or give another directory"
        )
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another run is writing to {out}; wait for it or give another directory"
            ) from error
        _check_same_run(out / RUN, settings)
        shutil.rmtree(settings.cache_dir, ignore_errors=True)
        settings.cache_dir.mkdir()
        try:
            yield results
        finally:
            shutil.rmtree(settings.cache_dir, ignore_errors=True)
            if settings.state_dir.is_dir() and not any(settings.state_dir.iterdir()):
                settings.state_dir.rmdir()


def _check_same_run(path: Path, settings: RunSettings) -> None:
    """Rows of different calibrations must not meet in one file."""
    wanted = settings.fixed()
    if not path.exists():
        write_json(path, wanted, indent=1)
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path} is damaged; delete it to go on with the settings of now, or give another "
            "directory"
        )
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ConfigError(
                f"{path.parent} was begun with {name}={found.get(name)!r}, now it is {value!r}; "
                "use the same value or another directory"
            )
