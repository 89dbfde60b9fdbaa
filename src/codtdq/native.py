"""Find and open the native library: torch-free, for the engine and for the runtime."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from codtdq.errors import ConfigError, UnsupportedError

FILE = "libcodtdq_native.so"
SWITCH = "CODTDQ_NATIVE"  # "0" turns the engine off; an instruction set's name selects it
OTHER_FILE = "CODTDQ_NATIVE_LIBRARY"  # a library to load instead of the installed one


def path() -> Path:
    """Where the library belongs, or the file that the environment names instead."""
    import codtdq

    other = os.environ.get(OTHER_FILE)
    if other:
        return Path(other)
    places = [Path(folder) / "engine" / "cpu" / "lib" / FILE for folder in codtdq.__path__]
    return next((place for place in places if place.is_file()), places[-1])


def open_library() -> ctypes.CDLL:
    """Load the library; an error says why it cannot be."""
    file = path()
    if not file.is_file() and os.environ.get(OTHER_FILE):
        raise UnsupportedError(f"{OTHER_FILE}={file}: no such file")
    if not file.is_file():
        raise UnsupportedError(
            "the library was not built when codtdq was installed (no C++ compiler was found); "
            "install g++ and reinstall codtdq"
        )
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise UnsupportedError(f"{file} cannot be loaded: {error}") from error


def keep_memory(limit: int) -> bool:
    """Let the process keep up to `limit` freed bytes, if the library is there and can do it."""
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        library = open_library()
        library.cod_keep_memory.argtypes = [ctypes.c_int64]
    except (UnsupportedError, AttributeError):  # not built, or another version
        return False
    select_wanted(library)  # a wrong name is an error, whatever the command
    return bool(library.cod_keep_memory(limit) == 0)


def select_wanted(library: ctypes.CDLL) -> None:
    """Use the instruction set that the environment names, or say why that cannot be."""
    wish = os.environ.get(SWITCH, "")
    if wish in ("", "0"):
        return
    library.cod_select.argtypes = [ctypes.c_char_p]
    library.cod_available.restype = library.cod_refusal.restype = ctypes.c_char_p
    library.cod_refusal.argtypes = [ctypes.c_char_p]
    if library.cod_select(wish.encode()):
        names = library.cod_available().decode().replace(" ", ", ")
        why = library.cod_refusal(wish.encode()).decode()
        raise ConfigError(  # asked for by name: nothing else may take its place
            f"{SWITCH}={wish}: no such instruction set here; available: {names}, or 0 to turn the "
            f"engine off ({wish}: {why})"
        )
