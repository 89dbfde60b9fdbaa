"""What encoders and products share: shapes of a convolution, views of tokens, largest values."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import NamedTuple

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Geometry, Rows
from codtdq.numerics.threads import wanted_threads

ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2, "gated_gelu": 3}


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


def largest_magnitude(x: Tensor, *, per_channel: bool = False) -> Tensor:
    """Largest |x| of maps [B, C, *positions] or rows [N, C]: [1] or [C]; NaN if x is not finite."""
    width = x.shape[1] if per_channel else 1
    views = token_views(x)
    found = torch.empty(len(views), width)
    engine, threads = library.engine(), wanted_threads()
    for image, view in enumerate(views):
        place = found.data_ptr() + 4 * image * width
        library.check(engine.cod_absmax(byref(view), per_channel, place, width, threads))
    return found[0] if len(views) == 1 else found.amax(0)


def depthwise_outputs(channels: int, activation: str) -> int:
    """Channels that a depthwise convolution gives: a gate consumes half of them."""
    return channels // 2 if activation == "gated_gelu" else channels


def token_views(x: Tensor) -> list[Rows]:
    """Blocks of x in which tokens lie at one distance: the whole tensor, or image by image."""
    channels = x.shape[1]
    if x.ndim == 2:
        sizes = (x.shape[0], channels, *x.stride())
        return [Rows(x.data_ptr(), *sizes, extent(x))]
    positions = x.shape[2:].numel()
    tokens = x.flatten(2)  # a view for contiguous and channels-last maps, else one copy
    batch, _, distance = tokens.stride()
    if x.shape[0] == 1 or batch == positions * distance:
        rows = tokens.shape[0] * positions
        sizes = (rows, channels, distance, tokens.stride(1))
        return [_held(Rows(tokens.data_ptr(), *sizes, extent(tokens)), tokens)]
    return [
        _held(
            Rows(
                tokens.data_ptr() + 4 * image * batch,
                positions,
                channels,
                distance,
                tokens.stride(1),
                extent(tokens[0]),
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


def float_panels(weight: Tensor) -> Tensor:
    """Float weights [K, N] in panels for the instruction set in use."""
    engine = library.engine()
    room = torch.empty(engine.cod_float_packed(*weight.shape))
    sizes = (extent(weight), *weight.shape, *weight.stride())
    library.check(engine.cod_float_pack(weight.data_ptr(), *sizes, room.data_ptr(), room.numel()))
    return room


def extent(tensor: Tensor) -> int:
    """Elements from the first to the last of a view, what lies between included."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * gap for size, gap in zip(tensor.shape, tensor.stride()))


def length(tensor: Tensor | None) -> int:
    """Elements of a tensor without gaps; 0 without one."""
    return 0 if tensor is None else tensor.numel()


def pointer(tensor: Tensor | None) -> int | None:
    """Where a tensor lies; None without one."""
    return None if tensor is None else tensor.data_ptr()
