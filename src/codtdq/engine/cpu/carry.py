"""Encode an input as carriers: signed bytes and their units.

Plain functions of maps [B, C, *positions] or rows [N, C] in any strides, each with a twin of the
same bits in `numerics.carry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from typing import NamedTuple

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import CarriedOutput, CarrySpec, QuantSpec, Rows
from codtdq.engine.cpu.products import pointer, token_views
from codtdq.errors import UnsupportedError
from codtdq.numerics import carry
from codtdq.numerics.threads import wanted_threads
from codtdq.schemes.lowered import RowTransform


class Carriers(NamedTuple):
    """A quantized input: what a product of carriers reads."""

    data: Tensor  # int8 [rows, depth >= C], zeros behind the channels
    unit: Tensor  # float32 [ceil(rows / unit_rows)], or [..., C]
    unit_rows: int  # 1: a unit for each row; H W: for each image
    multiplier: Tensor | None = None  # uint8, if it was asked for


def depth_of(channels: int) -> int:
    """Bytes of a row of carriers: a multiple of 8 up to 16 channels, else of 32."""
    return int(library.engine().cod_carrier_depth(channels))


def carry_spec(how: carry.CarrySpec, transform: RowTransform | None = None) -> CarrySpec:
    """The engine's form; it points into the tensors of the transform and keeps them."""
    shift, scale, order, hadamard = transform or RowTransform()
    vectors = (shift, scale, None if scale is None else 1 / scale, order)
    spec = CarrySpec(
        how.bits,
        how.group,
        how.trials,
        how.asymmetric,
        how.zero_weight,
        *map(pointer, vectors),
        hadamard,
        min((vector.numel() for vector in vectors if vector is not None), default=0),
    )
    spec.owner = vectors
    return spec


def carry_groups(
    x: Tensor,
    spec: QuantSpec | CarrySpec,
    *,
    asymmetric: bool = False,
    per_image: bool = False,
    multipliers: bool = False,
) -> Carriers:
    """Carriers token group by token group.

    spec: bits, group and the bounds of DCRP (symmetric, or asymmetric without bounds), or how
    multipliers are tried behind a transform. per_image: all tokens of an image share a unit (rows
    are one image), as kernels of several taps need it.
    """
    count = -(-x.shape[1] // spec.group)
    rows = x.numel() // x.shape[1]
    found = torch.empty(rows, count, dtype=torch.uint8) if multipliers else None
    out = _room(x, x.shape[1], per_image)._replace(multiplier=found)
    engine, threads = library.engine(), wanted_threads()
    for view, given, done in _views(x, out):
        _keep(given, found, done * count)
        if isinstance(spec, QuantSpec):
            code = engine.cod_carry_groups(
                byref(view), byref(spec), asymmetric, byref(given), threads
            )
        else:
            code = engine.cod_carry_tokens(byref(view), byref(spec), byref(given), threads)
        library.check(code)
    return out


def carry_pixels(
    x: Tensor, spec: CarrySpec, *, per_channel: bool = False, multipliers: bool = False
) -> Carriers:
    """Carriers of maps, pixel group by pixel group of a channel; rows are one image.

    A unit for each image, or for each channel of it.
    """
    channels, out = x.shape[1], _room(x, x.shape[1], True, per_channel)
    images, count = out.unit.shape[0], -(-out.unit_rows // min(spec.group, out.unit_rows))
    found = torch.empty(images * count, channels, dtype=torch.uint8) if multipliers else None
    engine, threads = library.engine(), wanted_threads()
    for view, given, done in _views(x, out):
        at = done // out.unit_rows * count * channels
        _keep(given, found, at)
        library.check(engine.cod_carry_pixels(byref(view), byref(spec), byref(given), threads))
    return out._replace(multiplier=found)


def carry_fixed(
    x: Tensor,
    bits: int,
    step: Tensor,
    zero: Tensor | None = None,
    *,
    per_image: bool = True,
    per_channel: bool = False,
    multipliers: bool = False,
) -> Carriers:
    """Carriers under given float32 steps [1] or [C].

    zero: int32 zero-points of the same shape; None: symmetric codes. 8 bits with a zero-point take
    two bytes. per_image: a value that is not finite spoils its image; else its row only.
    per_channel: steps are units, and it spoils its channel only.
    """
    step = step.float().contiguous()
    zero = None if zero is None else zero.to(torch.int32).contiguous()
    if zero is not None and zero.shape != step.shape:
        raise UnsupportedError(f"zero-points {tuple(zero.shape)} for steps {tuple(step.shape)}")
    doubled = zero is not None and bits == 8
    out = _room(x, x.shape[1] * (2 if doubled else 1), per_image, per_channel)
    found = torch.empty(step.numel(), dtype=torch.uint8) if multipliers else None
    engine, threads = library.engine(), wanted_threads()
    for view, given, _ in _views(x, out):
        _keep(given, found, 0)
        library.check(
            engine.cod_carry_fixed(
                byref(view),
                bits,
                step.data_ptr(),
                pointer(zero),
                step.numel(),
                0,
                byref(given),
                threads,
            )
        )
    return out._replace(multiplier=found)


def _room(x: Tensor, width: int, per_image: bool, per_channel: bool = False) -> Carriers:
    """Tensors for carriers of so many bytes a row."""
    rows = x.numel() // x.shape[1]
    image = rows if x.ndim == 2 else x.shape[2:].numel()
    unit_rows = max(image, 1) if per_image else 1
    count = -(-rows // unit_rows)
    unit = torch.empty(count, x.shape[1]) if per_channel else torch.empty(count)
    return Carriers(torch.empty(rows, depth_of(width), dtype=torch.int8), unit, unit_rows)


def _views(x: Tensor, out: Carriers) -> Iterator[tuple[Rows, CarriedOutput, int]]:
    """(rows of x, where their carriers go, first row) of blocks that the engine reads at once."""
    done, stride = 0, out.unit.shape[1] if out.unit.ndim == 2 else 0
    for view in token_views(x):
        row, unit = done * out.data.shape[1], done // out.unit_rows * max(stride, 1)
        yield (
            view,
            CarriedOutput(
                out.data.data_ptr() + row,
                out.data.shape[1],
                out.unit.data_ptr() + 4 * unit,
                out.unit_rows,
                None,
                stride,
                out.data.numel() - row,
                out.unit.numel() - unit,
                0,
            ),
            done,
        )
        done += view.rows


def _keep(out: CarriedOutput, multipliers: Tensor | None, at: int) -> None:
    """Where the multipliers go, from the at-th on."""
    if multipliers is not None:
        out.multiplier = multipliers.data_ptr() + at
        out.multiplier_count = multipliers.numel() - at
