"""Finished rows of a long measurement, on disk, tied to exactly one run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from codtdq.errors import DataError
from codtdq.io import write_text


class RowFile:
    """A line that says what is measured, then a line per row, each on disk when `append` returns.

    A last line that was cut off while being written is dropped.
    """

    def __init__(self, path: str | Path, key: dict[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        self._key: dict[str, Any] = json.loads(json.dumps(key))
        self.rows = self._read() if resume and self.path.exists() else []
        self._begun = False

    def append(self, row: dict[str, Any]) -> None:
        """Add a row and force it to disk. The first one replaces what is no part of this run."""
        self.rows.append(row)
        if not self._begun:
            lines = [self._key, *self.rows]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))
            self._begun = True
            return
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def discard(self) -> None:
        """Remove the file: the run is over."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            found, *rows = [dict(json.loads(line)) for line in lines if line.endswith("\n")]
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{self.path} cannot be resumed: {error}; delete it") from error
        changed = [name for name in self._key if found.get(name) != self._key[name]]
        if changed:
            raise DataError(
                f"{self.path} belongs to another run (different {', '.join(changed)}); "
                "delete it or run without --resume"
            )
        return rows
