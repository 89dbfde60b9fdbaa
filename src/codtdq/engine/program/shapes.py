"""Shapes of results, where torch would find them in Python.

Most operations of torch tell the shape of their result at once, on tensors without memory. Some do
it in a library of reference functions whose import takes seconds; these are their few formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Shapes = Callable[..., Any]
SHAPES: dict[str, Shapes] = {}


def shape(*names: str) -> Callable[[Shapes], Shapes]:
    """Make a function tell the shapes of some operations."""

    def keep(function: Shapes) -> Shapes:
        for name in names:
            SHAPES[name] = function
        return function

    return keep


def _like(x: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    return torch.empty(x.shape if sizes is None else tuple(sizes), device="meta")


def _preserved(x: Tensor) -> Tensor:
    """As x, in its memory order, without gaps."""
    strides, step = [0] * x.ndim, 1
    for axis in sorted(range(x.ndim), key=lambda a: (x.stride(a), -a)):
        strides[axis] = step
        step *= x.shape[axis]
    return torch.empty_strided(x.shape, strides, device="meta")


@shape("aten.native_layer_norm.default", "aten.native_group_norm.default")
def norms(x: Tensor, *settings: Any) -> tuple[Tensor, None, None]:
    """The norm; its moments are for gradients only."""
    return _like(x), None, None


@shape("aten.native_batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(x: Tensor, *settings: Any) -> tuple[Tensor, None, None]:
    """In the memory order of its input."""
    return _preserved(x), None, None


@shape("aten.roll.default")
def roll(x: Tensor, *settings: Any) -> Tensor:
    """As the input."""
    return _like(x)


@shape("aten._scaled_dot_product_flash_attention_for_cpu.default")
def attention(q: Tensor, k: Tensor, v: Tensor, *settings: Any, **more: Any) -> tuple[Tensor, None]:
    """[B, heads, N, E], heads inside of tokens."""
    batch, heads, queries, _ = q.shape
    return torch.empty(batch, queries, heads, v.shape[3], device="meta").transpose(1, 2), None


@shape("aten.convolution.default")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Maps; channels-last if the input or the weight is."""
    if transposed:
        raise NotImplementedError("transposed convolutions")
    count = len(weight.shape) - 2
    wide = [
        list(given) * (count if len(given) == 1 else 1) for given in (stride, padding, dilation)
    ]
    sides = [
        (n + 2 * pad - gap * (k - 1) - 1) // step + 1
        for n, k, step, pad, gap in zip(x.shape[2:], weight.shape[2:], *wide)
    ]
    y = torch.empty(x.shape[0], weight.shape[0], *sides, device="meta")
    last = torch.channels_last
    if x.ndim == 4 and any(
        one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in (x, weight)
    ):
        return y.contiguous(memory_format=last)
    return y


@shape("aten.grid_sampler_2d.default")
def grid_sample(x: Tensor, grid: Tensor, *settings: Any) -> Tensor:
    """Channels of the map at the points of the grid."""
    return _like(x, (x.shape[0], x.shape[1], *grid.shape[1:3]))


@shape(
    *(
        f"aten.{name}{end}.{kind}"
        for name in ("add", "sub", "mul", "div")
        for end in ("", "_")
        for kind in ("Tensor", "Scalar")
    ),
    *(
        f"aten.{name}.default"
        for name in ("maximum", "minimum", "relu", "relu_", "sigmoid", "gelu")
    ),
    *(f"aten.{name}.default" for name in ("silu", "silu_", "tanh", "cos", "sin", "exp", "clone")),
    *(f"aten.{name}.default" for name in ("clamp_min", "clamp", "sqrt", "rsqrt", "abs", "neg")),
)
def pointwise(*args: Any, **more: Any) -> Tensor:
    """Broadcast, in the memory order of the first input that has the whole shape."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    count = max(one.ndim for one in tensors)
    wide = [(1,) * (count - one.ndim) + tuple(one.shape) for one in tensors]
    sizes = torch.Size(next((n for n in axis if n != 1), 1) for axis in zip(*wide))
    for one in tensors:
        if one.shape == sizes and one.dtype is torch.float32:
            order = more.get("memory_format") or torch.preserve_format
            if order is torch.preserve_format:
                return _preserved(one)
            return _like(one).contiguous(memory_format=order)
    return torch.empty(sizes, device="meta")


@shape("aten.mm.default", "aten.bmm.default")
def matmul(x: Tensor, z: Tensor) -> Tensor:
    """[..., M, N]."""
    return _like(x, (*x.shape[:-1], z.shape[-1]))


@shape("aten.addmm.default", "aten.baddbmm.default")
def added_matmul(added: Tensor, x: Tensor, z: Tensor, **settings: Any) -> Tensor:
    """[..., M, N]."""
    return matmul(x, z)


@shape("aten._softmax.default")
def softmax(x: Tensor, *settings: Any) -> Tensor:
    """As the input."""
    return _preserved(x)


@shape("aten.cat.default")
def cat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Parts side by side; channels-last if all of them are."""
    first = parts[0]
    sizes = list(first.shape)
    sizes[axis] = sum(one.shape[axis] for one in parts)
    y = _like(first, sizes)
    last = torch.channels_last
    maps = all(
        one.ndim == 4 and one.is_contiguous(memory_format=last) and not one.is_contiguous()
        for one in parts
    )
    return y.contiguous(memory_format=last) if maps else y


@shape("aten.stack.default")
def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Parts along a new axis."""
    sizes = list(parts[0].shape)
    sizes.insert(axis % (len(sizes) + 1), len(parts))
    return _like(parts[0], sizes)


@shape(
    "aten.upsample_bilinear2d.default",
    "aten.upsample_nearest2d.default",
    "aten._upsample_nearest_exact2d.default",
)
def resize(x: Tensor, sizes: Sequence[int], *settings: Any, **more: Any) -> Tensor:
    """Maps of another size in the same memory order."""
    y = _like(x, (*x.shape[:2], *sizes))
    last = torch.channels_last
    if x.is_contiguous(memory_format=last) and not x.is_contiguous():
        return y.contiguous(memory_format=last)
    return y


@shape(
    *(f"aten.{kind}_pad{axes}d.default" for kind in ("reflection", "replication") for axes in "12")
)
def padded(x: Tensor, pads: Sequence[int]) -> Tensor:
    """Maps with borders; pads begin with the last axis."""
    sizes = list(x.shape)
    for axis in range(len(pads) // 2):
        sizes[-1 - axis] += pads[2 * axis] + pads[2 * axis + 1]
    return _like(x, sizes)


@shape("aten.mean.dim", "aten.amax.default", "aten.sum.dim_IntList")
def reduction(x: Tensor, axes: Any = None, keepdim: bool = False, **more: Any) -> Tensor:
    """Without the axes, or with axes of length 1."""
    gone = {axis % x.ndim for axis in (axes or range(x.ndim))}
    if keepdim:
        return _like(x, [1 if axis in gone else n for axis, n in enumerate(x.shape)])
    return _like(x, [n for axis, n in enumerate(x.shape) if axis not in gone])


@shape("aten.linalg_vector_norm.default")
def vector_norm(x: Tensor, order: Any = 2, axes: Any = None, keepdim: bool = False) -> Tensor:
    """As a sum."""
    return reduction(x, axes, keepdim)


@shape("aten.avg_pool2d.default")
def average_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *more: Any,
) -> Tensor:
    """Windows that fit; with `ceil_mode` torch counts."""
    if ceil_mode or len(kernel) != 2:
        raise NotImplementedError("windows that do not fit")
    pads = list(padding) * (2 if len(padding) == 1 else 1)
    steps = list(stride or kernel) * (2 if len(stride or kernel) == 1 else 1)
    sides = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(x.shape[2:], kernel, steps, pads)]
    return _like(x, (*x.shape[:2], *sides))
