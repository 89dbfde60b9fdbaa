"""What `torch.ops.codtdq.*` accept: anyone may call them, with tensors of any kind.

Each check raises one line that names the operator, what was found and what is accepted. Executors
call the functions behind the operators, with arguments that were checked when they were built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from codtdq.engine.cpu import carry
from codtdq.engine.cpu.deform import POINTS
from codtdq.engine.cpu.products import ACTIVATIONS, Window
from codtdq.errors import UnsupportedError
from codtdq.schemes.lowered import MAX_GROUP, MAX_TRIALS

LARGEST_SIDE = 1 << 24  # of a map or a weight: no product of them overflows
LARGEST_WINDOW = 1 << 16  # kernel, stride, padding, dilation
MOST_TOKENS = 1 << 31


class Arguments:
    """The arguments of one call."""

    def __init__(self, operator: str) -> None:
        self._operator = operator

    def require(self, sound: bool, found: str, accepted: str) -> None:
        """Raise unless it is."""
        if not sound:
            raise UnsupportedError(f"codtdq::{self._operator}: {found}; accepted: {accepted}")

    def tensor(
        self,
        name: str,
        value: Tensor,
        dtype: torch.dtype,
        shape: Sequence[int | None] | None = None,
        *,
        dense: bool = False,
    ) -> None:
        """Check type, device and shape (None: any size); dense: without gaps."""
        wanted = "any shape" if shape is None else f"[{', '.join(map(_size, shape))}]"
        fits = shape is None or (
            value.ndim == len(shape)
            and all(size in (None, own) for size, own in zip(shape, value.shape))
        )
        sound = value.dtype is dtype and value.device.type == "cpu" and fits
        kind = str(dtype).removeprefix("torch.")
        found = f"{name} is {_described(value)}"
        self.require(sound, found, f"{kind} {wanted} on the CPU")
        gaps = dense and not value.is_contiguous()
        self.require(not gaps, f"{name} has strides {value.stride()}", "memory without gaps")

    def input(self, x: Tensor) -> int:
        """Check a float map [B, C, ...] or rows [N, C]; returns C."""
        self.tensor("x", x, torch.float32)
        sound = x.ndim >= 2 and x.shape[1] >= 1
        self.require(sound, f"x is {_described(x)}", "[N, C] or [B, C, positions] with C >= 1")
        return x.shape[1]

    def whole(self, name: str, value: int, low: int, high: int) -> None:
        """Check a number that has limits."""
        self.require(low <= value <= high, f"{name} is {value}", f"{low} to {high}")

    def share(self, name: str, value: float | None) -> None:
        """Check a share of a group."""
        sound = value is None or 0 <= value <= 1
        self.require(sound, f"{name} is {value}", "0 to 1, or None")

    def groups(self, bits: int, group: int, most_bits: int = 8) -> None:
        """Check width and size of groups."""
        self.whole("bits", bits, 2, most_bits)
        self.whole("group", group, 1, MAX_GROUP)


def check_bounds(
    operator: str,
    bits: int,
    group: int,
    percentile: float | None,
    tau: float | None,
    zero_ratio: float | None,
) -> None:
    """Check how token groups get their range."""
    given = Arguments(operator)
    given.groups(bits, group)
    given.share("percentile", percentile)
    given.share("zero_ratio", zero_ratio)
    given.require(tau is None or math.isfinite(tau), f"tau is {tau}", "a finite number, or None")


def check_search(
    operator: str, bits: int, group: int, trials: int, asymmetric: bool, zero_weight: float
) -> Arguments:
    """Check how multipliers are tried."""
    given = Arguments(operator)
    given.groups(bits, group, 7 if asymmetric else 8)
    given.whole("trials", trials, 1, MAX_TRIALS)
    sound = math.isfinite(zero_weight) and zero_weight >= 0
    given.require(sound, f"zero_weight is {zero_weight}", "a finite number from 0")
    return given


def check_transform(
    given: Arguments,
    channels: int,
    shift: Tensor | None,
    scale: Tensor | None,
    order: Tensor | None,
) -> None:
    """Check what is done to a row first."""
    for name, vector in (("shift", shift), ("scale", scale)):
        if vector is not None:
            given.tensor(name, vector, torch.float32, [channels], dense=True)
    if order is not None:
        given.tensor("order", order, torch.int32, [channels], dense=True)
        low, high = (int(value) for value in torch.aminmax(order))
        sound = 0 <= low and high < channels
        given.require(sound, f"order has {low} to {high}", f"indices of {channels} channels")


def check_steps(x: Tensor, bits: int, step: Tensor, zero: Tensor | None, per_channel: bool) -> None:
    """Check given steps and zero-points."""
    given = Arguments("carry_fixed")
    channels = given.input(x)
    given.whole("bits", bits, 2, 8)
    counts = (channels,) if per_channel else (1, channels)
    sizes = " or ".join(f"[{n}]" for n in counts)
    sound = step.dtype is torch.float32 and step.ndim == 1 and step.numel() in counts
    given.require(sound and _on_cpu(step), f"step is {_described(step)}", f"float32 {sizes}")
    if zero is not None:
        kinds = (torch.int32, torch.float32)
        sound = zero.dtype in kinds and zero.shape == step.shape and _on_cpu(zero)
        found = f"zero is {_described(zero)}"
        given.require(sound, found, f"int32 or float32 {list(step.shape)}, as step")
        wide = bits == 8 and step.numel() > 1
        given.require(not wide, "8 bits with a zero-point for each channel", "one for all of them")


def check_window(given: Arguments, *sizes: Sequence[int]) -> None:
    """Check maps, kernel, stride, padding and dilation."""
    names = ("maps", "kernel", "stride", "padding", "dilation")
    for name, values, count in zip(names, sizes, (3, 2, 2, 2, 2)):
        given.require(len(values) == count, f"{name} is {list(values)}", f"{count} numbers")
        least, most = int(name not in ("maps", "padding")), LARGEST_WINDOW
        for value in values:
            given.whole(name, value, least, LARGEST_SIDE if name == "maps" else most)
    maps, *sides = sizes
    out = Window((maps[0], maps[1], maps[2]), *((side[0], side[1]) for side in sides)).out
    sound = min(out) >= 0 and maps[0] * out[0] * out[1] <= MOST_TOKENS
    found = f"a window of {maps[0]} maps {out[0]} x {out[1]}"
    given.require(sound, found, f"sides from 0, up to {MOST_TOKENS} tokens")


def check_carriers(
    given: Arguments,
    data: Tensor,
    unit: Tensor,
    unit_rows: int,
    maps: Sequence[int],
    channels: int,
    *,
    own_units: bool,
    image_units: bool,
) -> None:
    """Check bytes and units: of channels if they may have their own, of whole images if needed."""
    rows, depth = math.prod(maps), carry.depth_of(channels)
    given.tensor("data", data, torch.int8, [rows, None], dense=True)
    found = f"data has rows of {data.shape[1]} bytes"
    given.require(data.shape[1] >= depth, found, f"{depth} for {channels} channels")
    image = maps[1] * maps[2]
    fits = unit_rows == image if image_units else 1 <= unit_rows <= MOST_TOKENS
    accepted = f"{image}, an image" if image_units else f"1 to {MOST_TOKENS}"
    given.require(fits and unit_rows >= 1, f"unit_rows is {unit_rows}", accepted)
    count = -(-rows // unit_rows)
    own = own_units and unit.ndim == 2
    given.tensor("unit", unit, torch.float32, [count, channels] if own else [count], dense=True)


def check_output(
    given: Arguments, bias: Tensor | None, outputs: int, activation: str, gated: bool
) -> None:
    """Check bias and activation."""
    if bias is not None:
        given.tensor("bias", bias, torch.float32, [outputs], dense=True)
    names = [name for name in ACTIVATIONS if gated or name != "gated_gelu"]
    given.require(activation in names, f"activation is {activation!r}", ", ".join(names))


def check_deform(x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Check a deformable convolution."""
    given = Arguments("deform_conv")
    given.tensor("x", x, torch.float32, [None] * 4)
    given.require(x.numel() > 0, f"x is {_described(x)}", "a map with values")
    images, channels, height, width = x.shape
    given.tensor("offsets", offsets, torch.float32, [images, 2 * POINTS, height, width])
    given.tensor("weight", weight, torch.float32, [POINTS * channels, None])
    given.require(weight.numel() > 0, f"weight is {_described(weight)}", "one output or more")
    given.tensor("bias", bias, torch.float32, [weight.shape[1]], dense=True)


def _on_cpu(value: Tensor) -> bool:
    return value.device.type == "cpu"


def _described(value: Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    place = "" if _on_cpu(value) else f" on {value.device}"
    return f"{kind} {list(value.shape)}{place}"


def _size(size: int | None) -> str:
    return "any" if size is None else str(size)
