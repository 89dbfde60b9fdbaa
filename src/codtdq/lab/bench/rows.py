"""results.jsonl: appended by one process, safe against being killed at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from codtdq.errors import DataError
from codtdq.io import write_bytes
from codtdq.lab.bench.cells import row_identity

RESULTS = "results.jsonl"


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a results file, or of the directory that holds it.

    The last row of a cell wins; a last line that was cut off while being written is left out.
    """
    path = Path(path)
    path = path / RESULTS if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected the {RESULTS} of `codtdq bench accuracy`")
    rows, _ = _parse(path)
    return list({row_identity(row): row for row in rows}.values())


class ResultsFile:
    """The writing side. Every row is on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _, good = _parse(path)
            if good < path.stat().st_size:
                os.truncate(path, good)
        self._stream = path.open("ab")

    def append(self, row: dict[str, Any]) -> None:
        """Add a row and force it to disk."""
        self._stream.write(_line(row))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Leave one row per cell in the file, the last one, atomically."""
        self._stream.close()
        rows, _ = _parse(self.path)
        kept = {row_identity(row): row for row in rows}
        if len(kept) == len(rows):
            return
        write_bytes(self.path, b"".join(_line(row) for row in kept.values()))

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _parse(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Rows, and how many bytes of the file hold them (less than all after a cut-off write)."""
    rows: list[dict[str, Any]] = []
    good = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break  # a complete row ends its line: this one was cut off
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path} line {number} is not JSON ({error}); delete that line to go on"
            ) from error
        if not isinstance(row, dict) or "status" not in row:
            raise DataError(f"{path} line {number} is no row; delete that line to go on")
        rows.append(row)
        good += len(line)
    return rows, good
