"""The fused activation quantizer as a torch operator: `codtdq::quantize_groups`."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.arguments import Arguments, check_bounds
from codtdq.engine.cpu.interface import Quantized, QuantSpec, Rows
from codtdq.engine.cpu.products import extent
from codtdq.errors import UnsupportedError
from codtdq.numerics.threads import wanted_threads

_SCHEMA = (
    "quantize_groups(Tensor x, int bits, int group, bool literal, bool guarded, "
    "float? percentile, float? tau, float? zero_ratio) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_operators = torch.library.Library("codtdq", "FRAGMENT")
_operators.define(_SCHEMA)

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def quantize_groups(
    x: Tensor,
    bits: int,
    group: int,
    literal: bool,
    guarded: bool,
    percentile: float | None,
    tau: float | None,
    zero_ratio: float | None,
) -> Results:
    """x_hat [..., C], radius, step [..., K], active, infeasible (uint8 [..., K]) of x [..., C]."""
    return torch.ops.codtdq.quantize_groups(
        x, bits, group, literal, guarded, percentile, tau, zero_ratio
    )


def _empty(x: Tensor, group: int) -> Results:
    count = -(-x.shape[-1] // group)
    lead = (*x.shape[:-1], count)
    flags = torch.empty(lead, dtype=torch.uint8, device=x.device)
    radius = torch.empty(lead, device=x.device)
    x_hat = torch.empty(x.shape, device=x.device)
    return x_hat, radius, torch.empty_like(radius), flags, torch.empty_like(flags)


def _on_cpu(
    x: Tensor,
    bits: int,
    group: int,
    literal: bool,
    guarded: bool,
    percentile: float | None,
    tau: float | None,
    zero_ratio: float | None,
) -> Results:
    engine = library.load()
    if engine is None:
        raise UnsupportedError(f"no native engine: {library.unavailable_reason()}")
    given = Arguments("quantize_groups")
    given.tensor("x", x, torch.float32)
    given.require(x.ndim >= 1, "x is a number", "[..., C]")
    check_bounds("quantize_groups", bits, group, percentile, tau, zero_ratio)
    results = _empty(x, group)
    x_hat, radius, step, active, infeasible = results
    if not x.numel():
        return results
    spec = QuantSpec(
        bits,
        group,
        literal,
        guarded,
        percentile is not None,
        tau is not None,
        zero_ratio is not None,
        0,
        percentile or 0.0,
        tau or 0.0,
        zero_ratio or 0.0,
    )
    channels, count = x.shape[-1], radius.shape[-1]
    for at, (rows, row_stride, offset) in enumerate(_blocks(x)):
        skip = at * rows
        out = Quantized(
            None,
            0,
            step.data_ptr() + 4 * skip * count,
            radius.data_ptr() + 4 * skip * count,
            active.data_ptr() + skip * count,
            infeasible.data_ptr() + skip * count,
            x_hat.data_ptr() + 4 * skip * channels,
            None,
            0,
            radius.numel() - skip * count,
            x_hat.numel() - skip * channels,
        )
        sizes = (rows, channels, row_stride, x.stride(-1), extent(x) - offset)
        view = Rows(x.data_ptr() + 4 * offset, *sizes)
        if engine.cod_quantize_groups(byref(view), byref(spec), byref(out), wanted_threads()):
            raise UnsupportedError(
                f"the native quantizer takes no groups of {group} at {bits} bits"
            )
    return results


def _blocks(x: Tensor) -> list[tuple[int, int, int]]:
    """(rows, stride between them, offset) of blocks in which rows lie at one distance."""
    if x.ndim == 1:
        return [(1, 0, 0)]
    lead, strides = x.shape[:-1], x.stride()[:-1]
    rows, stride = lead[-1], strides[-1]
    outer: list[int] = [0]
    for size, gap in zip(reversed(lead[:-1]), reversed(strides[:-1])):
        if len(outer) == 1 and gap == rows * stride:
            rows *= size
        else:
            outer = [i * gap + at for i in range(size) for at in outer]
    return [(rows, stride, offset) for offset in outer]


def _on_meta(x: Tensor, bits: int, group: int, *rest: object) -> Results:
    return _empty(x, group)


_operators.impl("quantize_groups", _on_cpu, "CPU")
_operators.impl("quantize_groups", _on_meta, "Meta")
