"""Matrix products on codes: quantize the input, multiply with weights that live in the engine.

A weight is packed once, for the instruction set in use.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codtdq.errors import UnsupportedError
from codtdq.native import library
from codtdq.native.library import Geometry, Input, Output, Quantized, QuantSpec, Rows, byref

ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2}


class PackedWeights:
    """Weights of one operator inside the engine; freed with this object."""

    def __init__(
        self, codes: Tensor, scale: Tensor, group: int, weight_group: int | None = None
    ) -> None:
        """Pack codes int8 [O, T, I] in -8..7 with scales [O, 1] or, per group, [O, T ceil(I/w)]."""
        engine = _engine()
        codes, scale = codes.contiguous(), scale.float().contiguous()
        outputs, taps, inputs = codes.shape
        self.outputs, self.taps, self.inputs, self.group = outputs, taps, inputs, group
        self.groups = -(-inputs // group)
        self._handle = engine.cod_weight_new(
            codes.data_ptr(), scale.data_ptr(), outputs, taps, inputs, group, weight_group or 0
        )
        if not self._handle:
            raise UnsupportedError(
                f"no native product for weights {tuple(codes.shape)} in activation groups of "
                f"{group} and weight groups of {weight_group}"
            )
        self.instruction_set = library.instruction_set()
        self._free = weakref.finalize(self, engine.cod_weight_free, self._handle)

    @property
    def handle(self) -> Any:
        """The engine's pointer."""
        return self._handle

    @property
    def bytes(self) -> int:
        """Memory that the packed form takes."""
        return int(_engine().cod_weight_bytes(self._handle))


@dataclass(frozen=True)
class Codes:
    """A quantized input inside one call: what the product reads."""

    codes: Tensor  # int8 [rows, padded]
    step: Tensor  # float32 [rows, K], or [1]
    sums: Tensor  # int32 [rows, K]
    single: bool  # one step for everything
    wide: bool  # more than 5 bits


def encode_groups(x: Tensor, spec: QuantSpec, group: int) -> Codes:
    """Codes of maps x [B, C, *positions] or rows [N, C], token group by token group.

    group: of the stored codes; `spec.group` or less, where all channels are one group.
    """
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    count = -(-channels // group)
    codes = torch.empty(rows, count * group, dtype=torch.int8)
    step, sums = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int32)
    out = Quantized(None, count * group, None, None, None, None, None, None)
    engine, threads, done = _engine(), torch.get_num_threads(), 0
    for view in _views(x):
        out.codes = codes.data_ptr() + done * count * group
        out.step, out.sums = step.data_ptr() + 4 * done * count, sums.data_ptr() + 4 * done * count
        _check(engine.cod_quantize_groups(byref(view), byref(spec), byref(out), threads))
        done += view.rows
    return Codes(codes, step, sums, False, spec.bits > 5)


def largest_magnitude(x: Tensor, *, per_channel: bool = False) -> Tensor:
    """Largest |x| of maps [B, C, *positions] or rows [N, C]: [1] or [C]; NaN if x is not finite."""
    width = x.shape[1] if per_channel else 1
    views = _views(x)
    found = torch.empty(len(views), width)
    for image, view in enumerate(views):
        place = found.data_ptr() + 4 * image * width
        _check(_engine().cod_absmax(byref(view), per_channel, place, torch.get_num_threads()))
    return found[0] if len(views) == 1 else found.amax(0)


def dequantized_channels(x: Tensor, bits: int, radius: Tensor, step: Tensor) -> Tensor:
    """x_hat as rows [N, C] under a radius and step for each channel, or one for all."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    x_hat = torch.empty(rows, channels)
    out = Quantized(None, 0, None, None, None, None, None, None)
    each, done = radius.numel() > 1, 0
    for view in _views(x):
        out.x_hat = x_hat.data_ptr() + 4 * done * channels
        _check(_engine().cod_quantize_fixed(
            byref(view), bits, radius.data_ptr(), step.data_ptr(), each, 4, 0, byref(out),
            torch.get_num_threads(),
        ))  # fmt: skip
        done += view.rows
    return x_hat


def encode_fixed(x: Tensor, bits: int, radius: Tensor, step: Tensor, group: int) -> Codes:
    """Codes of x under one given radius and step, each [1]."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    count = -(-channels // group)
    codes = torch.empty(rows, count * group, dtype=torch.int8)
    sums = torch.empty(rows, count, dtype=torch.int32)
    out = Quantized(None, count * group, None, None, None, None, None, None)
    engine, threads, done = _engine(), torch.get_num_threads(), 0
    for view in _views(x):
        out.codes = codes.data_ptr() + done * count * group
        out.sums = sums.data_ptr() + 4 * done * count
        _check(engine.cod_quantize_fixed(
            byref(view), bits, radius.data_ptr(), step.data_ptr(), 0, group, 0, byref(out), threads
        ))  # fmt: skip
        done += view.rows
    return Codes(codes, step, sums, True, bits > 5)


def product(
    x: Codes, weights: PackedWeights, geometry: Geometry, bias: Tensor | None, activation: str
) -> Tensor:
    """Output rows [B * out_h * out_w, O]."""
    rows = geometry.batch * geometry.out_h * geometry.out_w
    y = torch.empty(rows, weights.outputs)
    given = Input(
        x.codes.data_ptr(), x.codes.shape[1], x.step.data_ptr(), x.sums.data_ptr(),
        0 if x.single else 1, x.wide,
    )  # fmt: skip
    out = Output(y.data_ptr(), weights.outputs, None if bias is None else bias.data_ptr(),
                 ACTIVATIONS[activation])  # fmt: skip
    threads = torch.get_num_threads()
    if weights.instruction_set != library.instruction_set():
        raise UnsupportedError(
            f"weights were packed for {weights.instruction_set}, {library.instruction_set()} is "
            "in use; call use_backend again"
        )
    _check(_engine().cod_conv(byref(given), byref(geometry), weights.handle, byref(out), threads))
    return y


def depthwise(
    x_hat: Tensor, weight: Tensor, geometry: Geometry, bias: Tensor | None, activation: str
) -> Tensor:
    """Depthwise convolution of rows [N, C] with taps [T, C]: output rows [M, C]."""
    rows, channels = geometry.batch * geometry.out_h * geometry.out_w, x_hat.shape[1]
    y = torch.empty(rows, channels)
    out = Output(y.data_ptr(), channels, None if bias is None else bias.data_ptr(),
                 ACTIVATIONS[activation])  # fmt: skip
    _check(_engine().cod_depthwise(
        x_hat.data_ptr(), byref(geometry), channels, weight.data_ptr(), byref(out),
        torch.get_num_threads(),
    ))  # fmt: skip
    return y


def geometry_of(
    shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Geometry:  # fmt: skip
    """Geometry of a convolution over maps of shape [B, C, H, W]; sizes are (height, width)."""
    sizes = [
        (size + 2 * pad - gap * (side - 1) - 1) // step + 1
        for size, side, step, pad, gap in zip(shape[2:], kernel, stride, padding, dilation)
    ]
    return Geometry(
        shape[0], shape[2], shape[3], sizes[0], sizes[1], kernel[0], kernel[1], stride[0],
        stride[1], padding[0], padding[1], dilation[0], dilation[1],
    )  # fmt: skip


def _views(x: Tensor) -> list[Rows]:
    """Blocks of x in which tokens lie at one distance: the whole tensor, or image by image."""
    channels = x.shape[1]
    if x.ndim == 2:
        return [Rows(x.data_ptr(), x.shape[0], channels, x.stride(0), x.stride(1))]
    positions = x[0, 0].numel()
    tokens = x.flatten(2)  # a view for contiguous and channels-last maps, else one copy
    if tokens.stride(0) == positions * tokens.stride(2):
        rows = tokens.shape[0] * positions
        view = Rows(tokens.data_ptr(), rows, channels, tokens.stride(2), tokens.stride(1))
        return [_held(view, tokens)]
    return [
        _held(Rows(tokens.data_ptr() + 4 * image * tokens.stride(0), positions, channels,
                   tokens.stride(2), tokens.stride(1)), tokens)
        for image in range(tokens.shape[0])
    ]  # fmt: skip


def _held(rows: Rows, owner: Tensor) -> Rows:
    """Keep the memory behind a view alive as long as the view."""
    rows.owner = owner
    return rows


def _engine() -> Any:
    engine = library.load()
    if engine is None:
        raise UnsupportedError(f"no native engine: {library.unavailable_reason()}")
    return engine


def _check(code: int) -> None:
    if code:
        reason = {1: "it does not take these shapes", 2: "out of memory"}.get(code, f"error {code}")
        raise UnsupportedError(f"the native engine refused: {reason}")
