"""The C interface as ctypes sees it: version, constants, structures and functions of the header."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from typing import Any

from codtdq.numerics import carrier, carry
from codtdq.schemes.lowered import MAX_GROUP, MAX_TRIALS

ABI_VERSION = 10

# What the C header defines; `library` compares every one of them with the library.
CONSTANTS = {
    "EPS": 1e-8,
    "STD_EPS": 1e-12,
    "TIE_MARGIN": 1.0 - 2.0**-20,
    "WEIGHT_OFFSET": 8,
    "MAX_GROUP": MAX_GROUP,
    "MAX_TRIALS": MAX_TRIALS,
    "LARGEST_CARRIER": carrier.LARGEST,
    "LARGEST_MULTIPLIER": carrier.LARGEST_MULTIPLIER,
    "LONGEST_SUM": carrier.LONGEST_SUM,
    "LEAST_STEP": carry.LEAST_STEP,
    "ACTIVE_C1": 1,
    "ACTIVE_C2": 2,
    "ACTIVE_GUARDED": 3,
    "INFEASIBLE_C1": 1,
    "INFEASIBLE_C2": 2,
}


ROW_SIZES = ("rows", "channels", "row_stride", "channel_stride", "count")


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

    _fields_ = [("data", c_void_p), *[(name, c_int64) for name in ROW_SIZES]]


class Quantized(Structure):
    """cod_quantized."""

    _fields_ = [
        ("codes", c_void_p),
        ("code_stride", c_int64),
        *[(name, c_void_p) for name in ("step", "radius", "active", "infeasible", "x_hat", "sums")],
        *[(name, c_int64) for name in ("code_bytes", "group_count", "value_count")],
    ]


class Output(Structure):
    """cod_output."""

    _fields_ = [
        ("data", c_void_p),
        ("row_stride", c_int64),
        ("bias", c_void_p),
        ("activation", c_int32),
        ("count", c_int64),
        ("bias_count", c_int64),
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
            "map_count",
            "offset_count",
        )
    ]


class CarrierInput(Structure):
    """cod_carrier."""

    _fields_ = [
        ("data", c_void_p),
        ("stride", c_int64),
        ("unit", c_void_p),
        *[(name, c_int64) for name in ("unit_rows", "unit_stride", "bytes", "unit_count")],
    ]


class CarriedOutput(Structure):
    """cod_carried."""

    _fields_ = [
        ("data", c_void_p),
        ("stride", c_int64),
        ("unit", c_void_p),
        ("unit_rows", c_int64),
        ("multiplier", c_void_p),
        *[(name, c_int64) for name in ("unit_stride", "bytes", "unit_count", "multiplier_count")],
    ]


class CarrySpec(Structure):
    """cod_carry_spec with its cod_transform."""

    _fields_ = [
        *[(name, c_int32) for name in ("bits", "group", "trials", "asymmetric")],
        ("zero_weight", c_float),
        *[(name, c_void_p) for name in ("shift", "scale", "inverse", "order")],
        ("hadamard", c_int64),
        ("count", c_int64),
    ]


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
    "OUTPUT_BYTES": Output,
    "GEOMETRY_BYTES": Geometry,
    "DEFORM_BYTES": Deform,
    "CARRIER_BYTES": CarrierInput,
    "CARRIED_BYTES": CarriedOutput,
    "CARRY_SPEC_BYTES": CarrySpec,
    "CARRIER_WEIGHT_BYTES": CarrierWeight,
}


def declare(library: Any) -> None:
    """Tell ctypes the arguments and results of every function."""
    library.cod_constant.restype, library.cod_constant.argtypes = c_double, [c_char_p]
    library.cod_isa.restype = library.cod_available.restype = c_char_p
    library.cod_select.argtypes = [c_char_p]
    library.cod_refusal.restype, library.cod_refusal.argtypes = c_char_p, [c_char_p]
    library.cod_use_team.restype, library.cod_use_team.argtypes = None, [c_void_p]
    library.cod_quantize_groups.argtypes = [
        POINTER(Rows),
        POINTER(QuantSpec),
        POINTER(Quantized),
        c_int32,
    ]
    library.cod_absmax.argtypes = [POINTER(Rows), c_int32, c_void_p, c_int64, c_int32]
    library.cod_deform_conv.argtypes = [
        c_void_p,
        c_void_p,
        POINTER(Deform),
        c_void_p,
        c_int64,
        c_int64,
        POINTER(Output),
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
    library.cod_carry_tokens.argtypes = library.cod_carry_pixels.argtypes = [
        POINTER(Rows),
        POINTER(CarrySpec),
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
    for pack in (library.cod_carrier_weight_pack, library.cod_carrier_weight_pack_nibbles):
        pack.argtypes = [*[c_void_p, c_int64] * 3, POINTER(CarrierWeight), c_int32]
    library.cod_carrier_weight_unpack.argtypes = [POINTER(CarrierWeight), *[c_void_p, c_int64] * 3]
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
        *[c_void_p, c_int64] * 2,
        POINTER(Output),
        c_int32,
    ]
