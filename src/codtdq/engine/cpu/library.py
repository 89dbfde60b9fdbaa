"""Load the native library with ctypes, once, and say why where that fails."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from codtdq import native
from codtdq.engine.cpu.interface import ABI_VERSION, CONSTANTS, STRUCTURES, declare
from codtdq.engine.cpu.program_interface import STRUCTURES as PROGRAM_STRUCTURES
from codtdq.engine.cpu.program_interface import declare as declare_programs
from codtdq.errors import UnsupportedError
from codtdq.native import SWITCH, open_library, path, select_wanted
from codtdq.numerics import acceleration

_library: Any = None
_reason: str | None = None
_sharing = False  # whether torch's threads were looked for


def load() -> Any | None:
    """The library, or None where it cannot run; `unavailable_reason` tells why."""
    global _library, _reason, _sharing
    if acceleration.turned_off():
        return None
    if _library is None and _reason is None:
        try:
            _library = _open()
        except UnsupportedError as error:
            _reason = str(error)
    if not _sharing and _library is not None and "torch" in sys.modules:
        _sharing = True
        _share_threads(_library)
    return _library


def engine() -> Any:
    """The library; an error where it cannot run."""
    found = load()
    if found is None:
        raise UnsupportedError(f"no native engine: {unavailable_reason()}")
    return found


def check(code: int) -> None:
    """Turn a result code of the library into an error."""
    if code:
        reason = {1: "it does not take these shapes", 2: "out of memory"}.get(code, f"error {code}")
        raise UnsupportedError(f"the native engine refused: {reason}")


def unavailable_reason() -> str | None:
    """Why there is no native engine, or None if there is one."""
    load()
    return "turned off" if acceleration.turned_off() else _reason


def turned_off() -> bool:
    """Whether this is inside of `disabled`."""
    return acceleration.turned_off()


def instruction_set() -> str | None:
    """The instruction set in use, or None without the engine."""
    library = load()
    return None if library is None else library.cod_isa().decode()


def available_sets() -> list[str]:
    """Instruction sets that the library has and this machine runs, best first."""
    library = load()
    return [] if library is None else library.cod_available().decode().split()


def refusal(name: str) -> str | None:
    """Why an instruction set cannot run here, or None if it can."""
    return engine().cod_refusal(name.encode()).decode() or None


def select(name: str) -> None:
    """Use another instruction set. Weights packed before belong to the old one."""
    library = load()
    if library is None or library.cod_select(name.encode()):
        why = unavailable_reason() if library is None else refusal(name)
        raise UnsupportedError(
            f"instruction set {name!r} cannot run here: {why}; "
            f"available: {', '.join(available_sets())}"
        )


def keep_memory(limit: int = 1 << 30) -> bool:
    """Let the process keep up to `limit` freed bytes; returns whether the C library can.

    By default it gives every large tensor back when it is freed, and each new one costs fresh pages
    from the system: a tenth of the time of a large network, quantized or not. This is a setting of
    the whole process: the commands of this package use it, the library never does by itself. A
    small limit does the opposite: nothing of that size is kept, and no holes stay between tensors.
    """
    return load() is not None and native.keep_memory(limit)


disabled = acceleration.plain  # run the plain torch path inside


def _open() -> Any:
    if os.environ.get(SWITCH) == "0":
        raise UnsupportedError(f"turned off by {SWITCH}=0")
    file, library = path(), open_library()
    try:
        declare(library)
        declare_programs(library)
    except AttributeError as error:
        raise UnsupportedError(f"{file} is another version: {error}; reinstall codtdq") from error
    _check(library, file)
    select_wanted(library)
    return library


def _share_threads(library: Any) -> None:
    """Let the engine run on the OpenMP threads of torch, where both are at hand.

    Threads of its own would wait for work on the cores on which those of torch do the same.
    """
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
        files = {line.split()[-1] for line in maps if "libgomp" in line and "/torch/" in line}
        team = ctypes.CDLL(files.pop()).GOMP_parallel if len(files) == 1 else None
    except (OSError, AttributeError):
        return
    if team is not None:
        library.cod_use_team(ctypes.cast(team, ctypes.c_void_p))


def _check(library: Any, file: Path) -> None:
    if library.cod_abi_version() != ABI_VERSION:
        raise UnsupportedError(f"{file} has another interface version; reinstall codtdq")
    structures = STRUCTURES | PROGRAM_STRUCTURES
    expected = CONSTANTS | {name: ctypes.sizeof(kind) for name, kind in structures.items()}
    wrong = [n for n, value in expected.items() if library.cod_constant(n.encode()) != value]
    if wrong:
        raise UnsupportedError(f"{file} disagrees about {', '.join(wrong)}; reinstall codtdq")


__all__ = ["check", "disabled", "engine", "instruction_set", "load", "path"]
