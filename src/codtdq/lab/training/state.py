"""The folder of a run: config, resumable state, log. Everything is replaced atomically."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from codtdq.errors import CheckpointError, ConfigError
from codtdq.io import write_json, write_state, write_text
from codtdq.lab.text import one_line
from codtdq.lab.training.config import TrainConfig, load_config

STATE_VERSION = 1


class RunFolder:
    """Names and safe writes of a run's files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.state = self.path / "state.pt"
        self.best = self.path / "best.pt"
        self.log = self.path / "log.jsonl"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder: a second run on it is refused at once, by whatever process."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(
                    f"another run is training in {self.path}; wait for it or choose another folder"
                ) from error
            yield

    def open(self, config: TrainConfig, *, resume: bool) -> dict[str, Any] | None:
        """Prepare the folder; returns the saved state when the run continues.

        A folder with finished work is never overwritten, and never continued under settings
        that would have given another run.
        """
        started = self.state.exists()
        if started and not resume:
            raise ConfigError(
                f"{self.path} holds a training run already; pass --resume (resume=True) to "
                "continue it, or choose another folder"
            )
        if started:
            field = load_config(self.config).first_difference(config)
            if field is not None:
                old = getattr(load_config(self.config), field)
                raise ConfigError(
                    f"cannot resume {self.path}: {field} was {old!r} and is now "
                    f"{getattr(config, field)!r}; use the old value or another folder"
                )
        write_json(self.config, config.to_dict(), indent=2)
        state = read_state(self.state) if started else None
        self._trim_log(0 if state is None else int(state["step"]))
        return state

    def append_log(self, row: Mapping[str, Any]) -> None:
        """Add one JSON line to the log."""
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete lines of the log."""
        if not self.log.exists():
            return []
        rows = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue  # a line that a crash cut short
            if isinstance(row, dict) and type(row.get("step")) is int:
                rows.append(row)
        return rows

    def _trim_log(self, step: int) -> None:
        """Drop rows that lie after the saved state: the resumed run will write them again."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_text(self.log, "".join(json.dumps(row) + "\n" for row in kept))


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state through a temporary file, so that a crash keeps the previous one."""
    write_state(path, {"version": STATE_VERSION, **state})


def read_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote; nothing in the file is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"cannot read the training state {path}: {one_line(error)}; start the run anew"
        ) from error
    sound = isinstance(state, dict) and state.get("version") == STATE_VERSION
    if not sound or type(state.get("step")) is not int:
        raise CheckpointError(
            f"{path} is not a training state of version {STATE_VERSION}; start the run anew"
        )
    return state
