"""The C interface of program files (`include/codtdq.h`) as ctypes sees it."""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

from codtdq.errors import UnsupportedError
from codtdq.native import open_library, path, select_wanted

VERSION = 1  # CODTDQ_VERSION
AXES = 8  # CODTDQ_MOST_AXES
ERROR_BYTES = 512
OK, BAD_FILE = 0, 3  # CODTDQ_OK, CODTDQ_BAD_FILE


class Shape(Structure):
    """codtdq_shape."""

    _fields_ = [
        ("input_axes", c_int32),
        ("output_axes", c_int32),
        ("input", c_int64 * AXES),
        ("output", c_int64 * AXES),
        *[
            (name, c_int64)
            for name in ("input_count", "output_count", "arena_bytes", "instructions")
        ],
    ]


@cache
def library() -> CDLL:
    """The native library with the functions of the header; an error says why there is none."""
    found = open_library()
    try:
        _declare(found)
    except AttributeError as error:
        raise UnsupportedError(f"{path()} is another version: {error}; reinstall it") from error
    if found.codtdq_version() != VERSION:
        raise UnsupportedError(f"{path()} has another interface version; reinstall it")
    select_wanted(found)
    return found


def _declare(found: CDLL) -> None:
    text: list[Any] = [c_char_p, c_size_t]
    found.codtdq_open.restype = found.codtdq_open_memory.restype = c_void_p
    found.codtdq_open.argtypes = [c_char_p, c_int32, *text]
    found.codtdq_open_memory.argtypes = [c_char_p, c_size_t, c_int32, *text]
    found.codtdq_close.restype, found.codtdq_close.argtypes = None, [c_void_p]
    found.codtdq_programs.restype, found.codtdq_programs.argtypes = c_int64, [c_void_p]
    found.codtdq_describe.argtypes = [c_void_p, c_int64, POINTER(Shape)]
    found.codtdq_constant_bytes.restype = c_int64
    found.codtdq_constant_bytes.argtypes = [c_void_p]
    found.codtdq_text.restype = found.codtdq_key.restype = c_char_p
    found.codtdq_text.argtypes = [c_void_p, c_char_p]
    found.codtdq_key.argtypes = [c_void_p, c_int64]
    buffers: list[Any] = [c_void_p, c_int64, c_void_p, c_int64]
    found.codtdq_run.argtypes = [c_void_p, c_int64, *buffers, c_int32, *text]
    image: list[Any] = [c_void_p, c_size_t, c_int64, c_int64, c_void_p, c_size_t, c_int32]
    found.codtdq_predict.argtypes = [c_void_p, c_int64, *image, *text]
