"""The quantizer kernels as functions of tensors.

Tokens are rows [N, C] or maps [B, C, *positions]; codes are int8 [tokens, K g] in token order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from codtdq.engine.triton import quantize as quantize_file
from codtdq.engine.triton import tables
from codtdq.engine.triton.launch import chosen, launch
from codtdq.engine.triton.tables import Block
from codtdq.engine.triton.weights import SLAB
from codtdq.numerics.affine import EPS, qmax_of, qmin_of
from codtdq.numerics.projection import TIE_MARGIN, rank_of
from codtdq.numerics.spec import ActivationSpec


class Codes(NamedTuple):
    """A quantized input: what a product reads."""

    codes: Tensor  # int8 [tokens, K g]
    step: Tensor  # float32 [tokens, K]; [1] for all; [C] for each channel (depthwise only)
    group: int  # g: channels that share a step in `codes`
    bits: int
    zero: Tensor | None = None  # int32, in the shape of step


def encode_groups(
    x: Tensor, spec: ActivationSpec, *, zero_point: bool = False, sums: Tensor | None = None
) -> Codes:
    """Codes under a range for each token and `spec.group_size` channels.

    zero_point: the range is [min, max] instead of what `spec` projects, with an integer zero-point.
    sums: int32 [tokens, K], filled with the sum of each group's codes.
    """
    kind = quantize_file.MIN_MAX if zero_point else quantize_file.PROJECT
    step = x.new_empty(_tokens(x), -(-x.shape[1] // spec.group_size))
    zero = torch.empty_like(step, dtype=torch.int32) if zero_point else None
    return _encode(x, spec, kind, step, zero, sums)


def encode_given(x: Tensor, spec: ActivationSpec, step: Tensor, zero: Tensor) -> Codes:
    """Codes under given steps and zero-points [tokens, K], as `affine.encode_shifted` has them."""
    return _encode(x, spec, quantize_file.GIVEN, step.clone(), zero, None)


def _encode(
    x: Tensor,
    spec: ActivationSpec,
    kind: int,
    step: Tensor,
    zero: Tensor | None,
    sums: Tensor | None,
) -> Codes:
    rows, count = step.shape
    group = spec.group_size
    codes = x.new_empty(rows, count * group, dtype=torch.int8)
    lanes = max(tables.power_of_two(group), SLAB)
    layout = _layout(x)
    arguments = {
        "x": x,
        "codes": codes,
        "step": step,
        "zero": zero,
        "sums": sums,
        **layout,
        "code_stride": count * group,
        "groups": count,
        **bounds_of(spec, x.device, kind == quantize_file.PROJECT),
    }
    constants = {
        "GROUP": group,
        "LANES": lanes,
        "RANGE": kind,
        **spec_constants(spec),
        "CHANNELS_LAST": layout["channel_stride"] == 1,
    }
    table = tuple(  # wide groups, fewer at a time
        (least, 0, block._replace(m=max(block.m * SLAB // lanes, 4)))
        for least, _, block in tables.GROUPS
    )

    def run(block: Block) -> None:
        sizes = {"BLOCK": block.m}
        grid = (-(-rows * count // block.m),)
        launch(quantize_file.quantize_groups, grid, arguments, constants | sizes, block)

    run(chosen("groups", table, rows * count, group, (spec, kind, rows, count), run))
    return Codes(codes, step, group, spec.bits, zero)


def encode_fixed(
    x: Tensor, bits: int, radius: Tensor, step: Tensor, *, checked: bool = False
) -> Codes:
    """Codes under one given radius and step, each [1], or one for each channel, [C].

    checked: an input that is not finite shows, by steps that are NaN.
    """
    found = step.clone() if checked else None
    return _encode_shared(x, bits, radius.numel() > 1, radius, step, None, found)


def encode_dynamic(x: Tensor, bits: int, *, per_channel: bool = False) -> Codes:
    """Codes under the largest magnitude of x, or of each channel."""
    count = x.shape[1] if per_channel else 1
    largest = torch.zeros(count, dtype=torch.int32, device=x.device)
    block = tables.block_for(tables.LARGEST, _tokens(x), x.shape[1])
    constants = {"PER_CHANNEL": per_channel, "BLOCK": block.m, "LANES": block.n}
    grid = (-(-_tokens(x) // block.m), -(-x.shape[1] // block.n))
    arguments = {"x": x, "largest": largest, **_layout(x)}
    launch(quantize_file.largest_magnitude, grid, arguments, constants, block)
    return _encode_shared(x, bits, per_channel, None, None, largest, x.new_empty(count))


def _encode_shared(
    x: Tensor,
    bits: int,
    per_channel: bool,
    radius: Tensor | None,
    step: Tensor | None,
    largest: Tensor | None,
    found: Tensor | None,
) -> Codes:
    rows, width = _tokens(x), -(-x.shape[1] // SLAB) * SLAB
    codes = x.new_empty(rows, width, dtype=torch.int8)
    arguments = {
        "x": x,
        "codes": codes,
        "radius": radius,
        "step": step,
        "largest": largest,
        "found": found,
        **_layout(x),
        "code_stride": width,
    }
    block = tables.block_for(tables.FIXED, rows, width)
    constants = {
        "QMIN": qmin_of(bits),
        "QMAX": qmax_of(bits),
        "PER_CHANNEL": per_channel,
        "BLOCK": block.m,
        "LANES": block.n,
    }
    grid = (-(-rows // block.m), -(-width // block.n))
    launch(quantize_file.quantize_fixed, grid, arguments, constants, block)
    taken = step if found is None else found
    assert taken is not None
    return Codes(codes, taken, SLAB, bits)


def _tokens(x: Tensor) -> int:
    return x.numel() // x.shape[1]


def _layout(x: Tensor) -> dict[str, int]:
    """Where the tokens of x lie."""
    if x.ndim == 2:
        rows, channels = x.shape
        return {
            "rows": rows,
            "channels": channels,
            "positions": rows,
            "image_stride": 0,
            "token_stride": x.stride(0),
            "channel_stride": x.stride(1),
        }
    batch, channels, positions = x.shape
    return {
        "rows": batch * positions,
        "channels": channels,
        "positions": positions,
        "image_stride": x.stride(0),
        "token_stride": x.stride(2),
        "channel_stride": x.stride(1),
    }


def spec_constants(spec: ActivationSpec) -> dict[str, int | bool]:
    """What a kernel is compiled for: the grid and the kind of projection."""
    both = spec.tau is not None and spec.zero_ratio is not None
    taken = both or not spec.literal  # Algorithm S1 has the bounds together or not at all
    return {
        "QMIN": qmin_of(spec.bits),
        "QMAX": qmax_of(spec.bits),
        "LITERAL": spec.literal,
        "GUARDED": spec.projection == "guarded",
        "HAS_BASE_RANK": spec.percentile is not None,
        "HAS_TAU": spec.tau is not None and taken,
        "HAS_RATIO": spec.zero_ratio is not None and taken,
    }


def bounds_of(spec: ActivationSpec, device: torch.device, projected: bool) -> dict[str, object]:
    """What a kernel is told about the bounds."""
    qmax = qmax_of(spec.bits)
    margin = 1.0 if spec.literal else TIE_MARGIN

    def ranks(share: float | None) -> Tensor | None:
        return None if share is None or not projected else _ranks(share, spec.group_size, device)

    return {
        "base_ranks": ranks(spec.percentile),
        "zero_ranks": ranks(spec.zero_ratio),
        "c1": float(qmax * (spec.tau or 0.0)),
        "c2": 2 * qmax * margin,
        "floor": qmax * EPS,
    }


@lru_cache(maxsize=64)
def _ranks(share: float, group: int, device: torch.device) -> Tensor:
    """Rank of the quantile by the number of elements: `rank_of` needs float64, kernels do not."""
    ranks = [int(rank_of(share, count)) for count in range(group + 1)]
    return torch.tensor(ranks, dtype=torch.int32, device=device)
