"""Load the native library with ctypes, once, and say why where that fails."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from codtdq.errors import UnsupportedError
from codtdq.numerics import acceleration, carrier
from codtdq.schemes.lowered import MAX_GROUP, MAX_TRIALS

ABI_VERSION = 7
FILE = "libcodtdq_native.so"
SWITCH = "CODTDQ_NATIVE"  # "0" turns the engine off; an instruction set's name selects it
OTHER_FILE = "CODTDQ_NATIVE_LIBRARY"  # a library to load instead of the installed one

# What the C header defines; `_check` compares every one of them with the library.
CONSTANTS = {
    "EPS": 1e-8,
    "STD_EPS": 1e-12,
    "TIE_MARGIN": 1.0 - 2.0**-20,
    "WEIGHT_OFFSET": 8,
    "MAX_GROUP": MAX_GROUP,
    "MAX_TRIALS": MAX_TRIALS,
    "WIDE_LOWEST": -112,
    "WIDE_HIGHEST": 127,
    "LARGEST_CARRIER": carrier.LARGEST,
    "LARGEST_MULTIPLIER": carrier.LARGEST_MULTIPLIER,
    "LONGEST_SUM": carrier.LONGEST_SUM,
    "LEAST_STEP": carrier.LEAST_STEP,
    "ACTIVE_C1": 1,
    "ACTIVE_C2": 2,
    "ACTIVE_GUARDED": 3,
    "INFEASIBLE_C1": 1,
    "INFEASIBLE_C2": 2,
}


class QuantSpec(Structure):
    """cod_quant_spec."""

    _fields_ = [
        *[
            (name, c_int32)
            for name in (
                "bits",
                "group",
                "literal",
                "guarded",
                "use_percentile",
                "use_tau",
                "use_zero_ratio",
                "pre",
            )
        ],
        *[(name, c_double) for name in ("percentile", "tau", "zero_ratio")],
    ]


class Rows(Structure):
    """cod_rows."""

    _fields_ = [
        ("data", c_void_p),
        *[(name, c_int64) for name in ("rows", "channels", "row_stride", "channel_stride")],
    ]


class Quantized(Structure):
    """cod_quantized."""

    _fields_ = [
        ("codes", c_void_p),
        ("code_stride", c_int64),
        *[(name, c_void_p) for name in ("step", "radius", "active", "infeasible", "x_hat", "sums")],
    ]


class SearchSpec(Structure):
    """cod_search_spec with its cod_transform."""

    _fields_ = [
        *[(name, c_int32) for name in ("bits", "group", "trials", "zero_point")],
        ("zero_weight", c_float),
        ("unit", c_float),
        *[(name, c_void_p) for name in ("shift", "scale", "inverse", "order")],
        ("hadamard", c_int64),
    ]


class Input(Structure):
    """cod_input."""

    _fields_ = [
        ("codes", c_void_p),
        ("code_stride", c_int64),
        ("step", c_void_p),
        ("sums", c_void_p),
        ("row_groups", c_int64),
        ("step_mode", c_int32),
        ("wide", c_int32),
    ]


class Output(Structure):
    """cod_output."""

    _fields_ = [
        ("data", c_void_p),
        ("row_stride", c_int64),
        ("bias", c_void_p),
        ("activation", c_int32),
    ]


class Geometry(Structure):
    """cod_geometry."""

    _fields_ = [
        *[(name, c_int64) for name in ("batch", "in_h", "in_w", "out_h", "out_w")],
        *[
            (name, c_int32)
            for name in (
                "kernel_h",
                "kernel_w",
                "stride_h",
                "stride_w",
                "pad_h",
                "pad_w",
                "dilation_h",
                "dilation_w",
            )
        ],
    ]


class Deform(Structure):
    """cod_deform."""

    _fields_ = [
        (name, c_int64)
        for name in (
            "batch",
            "height",
            "width",
            "channels",
            "offset_image",
            "offset_channel",
            "offset_row",
            "offset_column",
        )
    ]


class Weight(Structure):
    """cod_weight."""

    _fields_ = [
        *[
            (name, c_int64)
            for name in (
                "outputs",
                "taps",
                "inputs",
                "groups",
                "panels",
                "panel_bytes",
                "packed_bytes",
                "scale_count",
            )
        ],
        *[(name, c_int32) for name in ("group", "weight_group", "columns", "exact")],
        ("packed", c_void_p),
        ("scales", c_void_p),
    ]


class CarrierInput(Structure):
    """cod_carrier."""

    _fields_ = [("data", c_void_p), ("stride", c_int64), ("unit", c_void_p), ("unit_rows", c_int64)]


class CarriedOutput(Structure):
    """cod_carried."""

    _fields_ = [*CarrierInput._fields_, ("multiplier", c_void_p)]


class CarrierWeight(Structure):
    """cod_carrier_weight."""

    _fields_ = [
        *[
            (name, c_int64)
            for name in (
                "outputs",
                "taps",
                "inputs",
                "depth",
                "panels",
                "panel_bytes",
                "packed_bytes",
                "multiplier_bytes",
                "factor_count",
            )
        ],
        *[(name, c_int32) for name in ("bits", "group", "run", "columns")],
        *[(name, c_void_p) for name in ("packed", "multiplier", "factor")],
    ]


STRUCTURES = {
    "QUANT_SPEC_BYTES": QuantSpec,
    "ROWS_BYTES": Rows,
    "QUANTIZED_BYTES": Quantized,
    "SEARCH_SPEC_BYTES": SearchSpec,
    "INPUT_BYTES": Input,
    "OUTPUT_BYTES": Output,
    "GEOMETRY_BYTES": Geometry,
    "DEFORM_BYTES": Deform,
    "WEIGHT_BYTES": Weight,
    "CARRIER_BYTES": CarrierInput,
    "CARRIED_BYTES": CarriedOutput,
    "CARRIER_WEIGHT_BYTES": CarrierWeight,
}

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
    library = load()
    return library is not None and library.cod_keep_memory(limit) == 0


disabled = acceleration.plain  # run the plain torch path inside


def path() -> Path:
    """Where the library belongs, or the file that the environment names instead."""
    import codtdq

    other = os.environ.get(OTHER_FILE)
    if other:
        return Path(other)
    places = [Path(folder) / "engine" / "cpu" / "lib" / FILE for folder in codtdq.__path__]
    return next((place for place in places if place.is_file()), places[-1])


def _open() -> Any:
    wish = os.environ.get(SWITCH, "")
    if wish == "0":
        raise UnsupportedError(f"turned off by {SWITCH}=0")
    file = path()
    if not file.is_file() and os.environ.get(OTHER_FILE):
        raise UnsupportedError(f"{OTHER_FILE}={file}: no such file")
    if not file.is_file():
        raise UnsupportedError(
            "the library was not built when codtdq was installed (no C++ compiler was found); "
            "install g++ and reinstall codtdq"
        )
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise UnsupportedError(f"{file} cannot be loaded: {error}") from error
    try:
        _declare(library)
    except AttributeError as error:
        raise UnsupportedError(f"{file} is another version: {error}; reinstall codtdq") from error
    _check(library, file)
    if wish and library.cod_select(wish.encode()):
        names = library.cod_available().decode().replace(" ", ", ")
        why = library.cod_refusal(wish.encode()).decode()
        raise UnsupportedError(
            f"{SWITCH}={wish}: no such instruction set here; available: {names} ({wish}: {why})"
        )
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
        library.cod_use_team(ctypes.cast(team, c_void_p))


def _declare(library: Any) -> None:
    library.cod_constant.restype, library.cod_constant.argtypes = c_double, [c_char_p]
    library.cod_isa.restype = library.cod_available.restype = c_char_p
    library.cod_select.argtypes = [c_char_p]
    library.cod_refusal.restype, library.cod_refusal.argtypes = c_char_p, [c_char_p]
    library.cod_keep_memory.argtypes = [c_int64]
    library.cod_use_team.restype, library.cod_use_team.argtypes = None, [c_void_p]
    library.cod_quantize_groups.argtypes = [
        POINTER(Rows),
        POINTER(QuantSpec),
        POINTER(Quantized),
        c_int32,
    ]
    library.cod_absmax.argtypes = [POINTER(Rows), c_int32, c_void_p, c_int32]
    library.cod_quantize_fixed.argtypes = [
        POINTER(Rows),
        c_int32,
        c_void_p,
        c_void_p,
        c_int32,
        c_int32,
        c_int32,
        POINTER(Quantized),
        c_int32,
    ]
    library.cod_search_tokens.argtypes = library.cod_search_pixels.argtypes = [
        POINTER(Rows),
        c_int64,
        POINTER(SearchSpec),
        POINTER(Quantized),
        c_int32,
    ]
    library.cod_weight_describe.argtypes = [
        c_int64,
        c_int64,
        c_int64,
        c_int32,
        c_int32,
        POINTER(Weight),
    ]
    library.cod_weight_pack.argtypes = [c_void_p, c_void_p, c_void_p, POINTER(Weight), c_int32]
    library.cod_conv.argtypes = [
        POINTER(Input),
        POINTER(Geometry),
        POINTER(Weight),
        POINTER(Output),
        c_int32,
    ]
    library.cod_depthwise.argtypes = [
        POINTER(Input),
        POINTER(Geometry),
        c_int64,
        c_int32,
        c_void_p,
        POINTER(Output),
        c_int32,
    ]
    library.cod_deform_rows.argtypes = [
        c_void_p,
        c_void_p,
        POINTER(Deform),
        c_int64,
        c_int64,
        c_void_p,
        c_int32,
    ]
    _declare_carriers(library)


def _declare_carriers(library: Any) -> None:
    library.cod_carrier_depth.restype = c_int64
    library.cod_carrier_depth.argtypes = [c_int64]
    library.cod_carry_groups.argtypes = [
        POINTER(Rows),
        POINTER(QuantSpec),
        c_int32,
        POINTER(CarriedOutput),
        c_int32,
    ]
    library.cod_carry_fixed.argtypes = [
        POINTER(Rows),
        c_int32,
        c_void_p,
        c_void_p,
        c_int64,
        c_int32,
        POINTER(CarriedOutput),
        c_int32,
    ]
    library.cod_carrier_weight_describe.argtypes = [
        c_int64,
        c_int64,
        c_int64,
        c_int32,
        c_int32,
        c_int32,
        POINTER(CarrierWeight),
    ]
    library.cod_carrier_weight_pack.argtypes = [
        c_void_p,
        c_void_p,
        c_void_p,
        POINTER(CarrierWeight),
        c_int32,
    ]
    library.cod_carrier_conv.argtypes = [
        POINTER(CarrierInput),
        POINTER(Geometry),
        POINTER(CarrierWeight),
        POINTER(Output),
        c_int32,
    ]
    library.cod_carrier_depthwise.argtypes = [
        POINTER(CarrierInput),
        POINTER(Geometry),
        c_int64,
        c_void_p,
        c_void_p,
        POINTER(Output),
        c_int32,
    ]


def _check(library: Any, file: Path) -> None:
    if library.cod_abi_version() != ABI_VERSION:
        raise UnsupportedError(f"{file} has another interface version; reinstall codtdq")
    expected = CONSTANTS | {name: ctypes.sizeof(kind) for name, kind in STRUCTURES.items()}
    wrong = [n for n, value in expected.items() if library.cod_constant(n.encode()) != value]
    if wrong:
        raise UnsupportedError(f"{file} disagrees about {', '.join(wrong)}; reinstall codtdq")


__all__ = ["byref", "check", "disabled", "engine", "instruction_set", "load", "path"]
