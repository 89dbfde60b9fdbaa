"""Groups on searched grids: codes with a zero-point and an E4M3 scale, found by the engine.

Plain functions of tokens [B, N, C] in any strides; the first dimension holds the images. What
leaves are shifted codes q - z under one step per group, so that products need to know nothing of
zero-points.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Input, Output, Quantized, Rows, SearchSpec
from codtdq.engine.cpu.products import ACTIVATIONS, WIDE, Codes, Window, depthwise_outputs
from codtdq.schemes.lowered import GroupGrid, RowTransform

ZERO_POINTS = {"none": 0, "inside": 1, "wide": 2}


def search_spec(grid: GroupGrid, transform: RowTransform | None = None) -> SearchSpec:
    """The engine's form; it points into the tensors of the transform and keeps them."""
    shift, scale, order, hadamard = transform or RowTransform()
    inverse = None if scale is None else 1 / scale
    vectors = (shift, scale, inverse, order)
    pointers = [None if v is None else v.data_ptr() for v in vectors]
    spec = SearchSpec(
        grid.bits,
        grid.group,
        grid.trials,
        ZERO_POINTS[grid.zero_point],
        grid.zero_weight,
        grid.unit,
        *pointers,
        hadamard,
    )
    spec.owner = vectors
    return spec


def values(tokens: Tensor, grid: GroupGrid) -> Tensor:
    """x_hat [B, N, C]."""
    x_hat = torch.empty(tokens.shape)
    out = Quantized(None, 0, None, None, None, None, None, None)
    spec, engine, threads = search_spec(grid), library.engine(), torch.get_num_threads()
    run = engine.cod_search_pixels if grid.pixels else engine.cod_search_tokens
    for view, first, images in _views(tokens):
        out.x_hat = x_hat[first].data_ptr()
        library.check(run(byref(view), images, byref(spec), byref(out), threads))
    return x_hat


def encode_tokens(tokens: Tensor, spec: SearchSpec, stored: int, bits: int) -> Codes:
    """Codes [B N, K stored] of token groups, steps and sums [B N, K].

    stored: room of a group; more than `spec.group` only where all channels are one group.
    bits: of codes as large as these.
    """
    images, positions, channels = tokens.shape
    count, rows = -(-channels // stored), images * positions
    codes = torch.empty(rows, count * stored, dtype=torch.int8)
    step, sums = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int32)
    out = Quantized(None, count * stored, None, None, None, None, None, None)
    engine, threads = library.engine(), torch.get_num_threads()
    for view, first, taken in _views(tokens):
        row = first * positions
        out.codes = codes.data_ptr() + row * count * stored
        out.step, out.sums = step.data_ptr() + 4 * row * count, sums.data_ptr() + 4 * row * count
        library.check(
            engine.cod_search_tokens(byref(view), taken, byref(spec), byref(out), threads)
        )
    return Codes(codes, step, sums, bits)


def encode_pixels(tokens: Tensor, spec: SearchSpec, bits: int) -> Codes:
    """Codes [B N, C] of pixel groups and steps [B, ceil(N / group), C]; no sums."""
    images, positions, channels = tokens.shape
    count = -(-positions // min(spec.group, positions))
    codes = torch.empty(images * positions, channels, dtype=torch.int8)
    step = torch.empty(images, count, channels)
    out = Quantized(None, channels, None, None, None, None, None, None)
    engine, threads = library.engine(), torch.get_num_threads()
    for view, first, taken in _views(tokens):
        out.codes = codes.data_ptr() + first * positions * channels
        out.step = step.data_ptr() + 4 * first * count * channels
        library.check(
            engine.cod_search_pixels(byref(view), taken, byref(spec), byref(out), threads)
        )
    return Codes(codes, step, torch.empty(0, dtype=torch.int32), bits)


def depthwise_pixels(
    x: Codes, group: int, taps: Tensor, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Depthwise convolution with taps [T, C] on pixel groups: output rows [window.rows, C], half of
    it if gated.
    """
    channels = taps.shape[1]
    y = torch.empty(window.rows, depthwise_outputs(channels, activation))
    size = min(group, window.maps[1] * window.maps[2])
    given = Input(
        x.codes.data_ptr(), x.codes.stride(0), x.step.data_ptr(), None, 0, 2, x.bits > WIDE
    )
    pointer = None if bias is None else bias.data_ptr()
    out = Output(y.data_ptr(), y.stride(0), pointer, ACTIVATIONS[activation])
    library.check(
        library.engine().cod_depthwise(
            byref(given),
            byref(window.geometry()),
            channels,
            size,
            taps.data_ptr(),
            byref(out),
            torch.get_num_threads(),
        )
    )
    return y


def _views(tokens: Tensor) -> Iterator[tuple[Rows, int, int]]:
    """(rows, first image, images) of blocks in which all tokens lie at one distance."""
    images, positions, channels = tokens.shape
    batch, row, channel = tokens.stride()
    if images == 1 or batch == positions * row:
        yield Rows(tokens.data_ptr(), images * positions, channels, row, channel), 0, images
        return
    if positions == 1:
        yield Rows(tokens.data_ptr(), images, channels, batch, channel), 0, images
        return
    for image in range(images):
        start = tokens.data_ptr() + 4 * image * batch
        yield Rows(start, positions, channels, row, channel), image, 1
