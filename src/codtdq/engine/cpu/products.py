"""Matrix products on codes: quantize the input, multiply with weights in the engine's panels.

Plain functions of tensors and numbers. `operators` registers them with torch, so that a compiler
can see through a model that uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import NamedTuple

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Geometry, Input, Output, Quantized, QuantSpec, Rows
from codtdq.engine.cpu.weights import PackedWeights

ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2, "gated_gelu": 3}
WIDE = 5  # codes of more bits need the wide sums


class Window(NamedTuple):
    """A convolution over maps [batch, height, width] of tokens; pairs are (height, width)."""

    maps: tuple[int, int, int]
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        sides = zip(self.maps[1:], self.kernel, self.stride, self.padding, self.dilation)
        height, width = (
            (size + 2 * pad - gap * (side - 1) - 1) // step + 1
            for size, side, step, pad, gap in sides
        )
        return height, width

    @property
    def rows(self) -> int:
        """Output tokens."""
        height, width = self.out
        return self.maps[0] * height * width

    def geometry(self) -> Geometry:
        """The engine's form."""
        return Geometry(
            *self.maps, *self.out, *self.kernel, *self.stride, *self.padding, *self.dilation
        )


class Codes(NamedTuple):
    """A quantized input: what a product reads."""

    codes: Tensor  # int8 [rows, padded]
    step: Tensor  # float32 [rows, K], or [1]: one for everything
    sums: Tensor  # int32 [rows, K]
    bits: int


def encode_groups(x: Tensor, spec: QuantSpec, group: int) -> Codes:
    """Codes of maps x [B, C, *positions] or rows [N, C], token group by token group.

    group: of the stored codes; `spec.group` or less, where all channels are one group.
    """
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    count = -(-channels // group)
    codes = torch.empty(rows, count * group, dtype=torch.int8)
    step, sums = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int32)
    out = Quantized(None, count * group, None, None, None, None, None, None)
    engine, threads, done = library.engine(), torch.get_num_threads(), 0
    for view in token_views(x):
        out.codes = codes.data_ptr() + done * count * group
        out.step, out.sums = step.data_ptr() + 4 * done * count, sums.data_ptr() + 4 * done * count
        library.check(engine.cod_quantize_groups(byref(view), byref(spec), byref(out), threads))
        done += view.rows
    return Codes(codes, step, sums, spec.bits)


def encode_fixed(x: Tensor, bits: int, radius: Tensor, step: Tensor, group: int) -> Codes:
    """Codes of x under one given radius and step, each [1], or one for each channel, [C]."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    count = -(-channels // group)
    codes = torch.empty(rows, count * group, dtype=torch.int8)
    sums = torch.empty(rows, count, dtype=torch.int32)
    out = Quantized(None, count * group, None, None, None, None, None, None)
    engine, threads, done = library.engine(), torch.get_num_threads(), 0
    for view in token_views(x):
        out.codes = codes.data_ptr() + done * count * group
        out.sums = sums.data_ptr() + 4 * done * count
        library.check(
            engine.cod_quantize_fixed(
                byref(view),
                bits,
                radius.data_ptr(),
                step.data_ptr(),
                radius.numel() > 1,
                group,
                0,
                byref(out),
                threads,
            )
        )
        done += view.rows
    return Codes(codes, step, sums, bits)


def largest_magnitude(x: Tensor, *, per_channel: bool = False) -> Tensor:
    """Largest |x| of maps [B, C, *positions] or rows [N, C]: [1] or [C]; NaN if x is not finite."""
    width = x.shape[1] if per_channel else 1
    views = token_views(x)
    found = torch.empty(len(views), width)
    engine, threads = library.engine(), torch.get_num_threads()
    for image, view in enumerate(views):
        place = found.data_ptr() + 4 * image * width
        library.check(engine.cod_absmax(byref(view), per_channel, place, threads))
    return found[0] if len(views) == 1 else found.amax(0)


def product(
    x: Codes, weights: PackedWeights, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Output rows [window.rows, O]."""
    y = torch.empty(window.rows, weights.shape[0])
    _multiply(x, weights, window, bias, activation, y)
    return y


def grouped_product(
    x: Codes, weights: Sequence[PackedWeights], window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """A convolution in groups: each reads its own channels and writes its own outputs.

    Codes [rows, C] without padding; the channels of a group are whole groups of codes.
    """
    each, channels = weights[0].shape[0], weights[0].shape[2]
    y = torch.empty(window.rows, each * len(weights))
    per_row = channels // weights[0].group
    for index, part in enumerate(weights):
        first = index * per_row
        step = x.step if x.step.ndim == 1 else x.step[:, first : first + per_row]
        codes = x.codes[:, index * channels : (index + 1) * channels]
        own = Codes(codes, step, x.sums[:, first : first + per_row], x.bits)
        columns = slice(index * each, (index + 1) * each)
        _multiply(
            own, part, window, None if bias is None else bias[columns], activation, y[:, columns]
        )
    return y


def _multiply(
    x: Codes,
    weights: PackedWeights,
    window: Window,
    bias: Tensor | None,
    activation: str,
    y: Tensor,
) -> None:
    given = Input(
        x.codes.data_ptr(),
        x.codes.stride(0),
        x.step.data_ptr(),
        x.sums.data_ptr(),
        x.sums.stride(0),
        x.step.ndim > 1,
        x.bits > WIDE,
    )
    out = Output(y.data_ptr(), y.stride(0), _pointer(bias), ACTIVATIONS[activation])
    library.check(
        library.engine().cod_conv(
            byref(given),
            byref(window.geometry()),
            byref(weights.described),
            byref(out),
            torch.get_num_threads(),
        )
    )


def depthwise(
    x: Codes, group: int, taps: Tensor, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Depthwise convolution with taps [T, C]: output rows [window.rows, C], half of it if gated.

    Steps per token group [rows, K] are read with the codes; fixed ones, [1] or [C], go into taps.
    """
    grouped = x.step.ndim > 1
    weight = taps if grouped else taps * x.step
    channels = weight.shape[1]
    y = torch.empty(window.rows, depthwise_outputs(channels, activation))
    given = Input(
        x.codes.data_ptr(),
        x.codes.stride(0),
        x.step.data_ptr(),
        None,
        x.sums.stride(0),
        grouped,
        x.bits > WIDE,
    )
    out = Output(y.data_ptr(), y.stride(0), _pointer(bias), ACTIVATIONS[activation])
    library.check(
        library.engine().cod_depthwise(
            byref(given),
            byref(window.geometry()),
            channels,
            group,
            weight.data_ptr(),
            byref(out),
            torch.get_num_threads(),
        )
    )
    return y


def depthwise_outputs(channels: int, activation: str) -> int:
    """Channels that a depthwise convolution gives: a gate consumes half of them."""
    return channels // 2 if activation == "gated_gelu" else channels


def finer_groups(x: Codes, group: int, finer: int) -> Codes:
    """The same codes with a step and a sum for every `finer` channels instead of every `group`."""
    if finer == group:
        return x
    step = x.step if x.step.ndim == 1 else x.step.repeat_interleave(group // finer, 1)
    sums = x.codes.view(x.codes.shape[0], -1, finer).sum(2, dtype=torch.int32)
    return Codes(x.codes, step, sums, x.bits)


def token_views(x: Tensor) -> list[Rows]:
    """Blocks of x in which tokens lie at one distance: the whole tensor, or image by image."""
    channels = x.shape[1]
    if x.ndim == 2:
        return [Rows(x.data_ptr(), x.shape[0], channels, x.stride(0), x.stride(1))]
    positions = x.shape[2:].numel()
    tokens = x.flatten(2)  # a view for contiguous and channels-last maps, else one copy
    batch, _, distance = tokens.stride()
    if x.shape[0] == 1 or batch == positions * distance:
        rows = tokens.shape[0] * positions
        return [_held(Rows(tokens.data_ptr(), rows, channels, distance, tokens.stride(1)), tokens)]
    return [
        _held(
            Rows(
                tokens.data_ptr() + 4 * image * batch,
                positions,
                channels,
                distance,
                tokens.stride(1),
            ),
            tokens,
        )
        for image in range(tokens.shape[0])
    ]


def pair(values: Sequence[int], blank: int) -> tuple[int, int]:
    """(height, width) of a setting with one or two values."""
    return (values[0], values[1]) if len(values) == 2 else (blank, values[0])


def _held(rows: Rows, owner: Tensor) -> Rows:
    """Keep the memory behind a view alive as long as the view."""
    rows.owner = owner
    return rows


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
