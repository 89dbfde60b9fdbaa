"""Running a user's Python file, so that what it registers is known to commands and workers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from codtdq.errors import CodtdqError


def import_file(file: str) -> None:
    """Execute a user's Python file under its own name, as an import would."""
    path = Path(file)
    if not path.is_file():
        raise CodtdqError(f"--import {file}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CodtdqError(f"--import {file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # quantized classes are found by module name
    try:
        spec.loader.exec_module(module)
    except CodtdqError:
        raise
    except Exception as error:
        raise CodtdqError(f"--import {file}: {type(error).__name__}: {error}") from error
