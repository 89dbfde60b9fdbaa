"""The native engine behind QuantLinear, QuantConv2d and QuantConv1d."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.engine.cpu import library
from codtdq.engine.cpu.fit import conv_group, padding_of, product_group
from codtdq.engine.cpu.operators import depthwise as _depthwise
from codtdq.engine.cpu.operators import quant_spec
from codtdq.engine.cpu.products import (
    Codes,
    Window,
    encode_fixed,
    encode_groups,
    finer_groups,
    grouped_product,
    largest_magnitude,
    pair,
    product,
)
from codtdq.engine.cpu.weights import PackedWeights
from codtdq.engine.fusion import activation_of, affine_of
from codtdq.errors import UnsupportedError
from codtdq.numerics.affine import EPS, step_of
from codtdq.numerics.grouping import split
from codtdq.numerics.projection import project
from codtdq.numerics.spec import ActivationSpec
from codtdq.operators import QuantOperator
from codtdq.operators.backed import BackedOperator, Executor


def unavailable(model: nn.Module) -> str | None:
    """Why the engine cannot run a model at all, or None."""
    reason = library.unavailable_reason()
    if reason is not None:
        return reason
    tensors = itertools.chain(model.parameters(), model.buffers())
    elsewhere = {tensor.device.type for tensor in tensors} - {"cpu"}
    return f"the model is on {', '.join(sorted(elsewhere))}" if elsewhere else None


def describe() -> str:
    """The engine in a few words."""
    return f"native INT4 engine, {library.instruction_set()}"


def executor_for(operator: QuantOperator) -> Executor:
    """A function that does what the operator's forward does, natively."""
    device = operator.packed_weight().packed.device
    if device.type != "cpu":
        raise UnsupportedError(
            f"the native engine runs on the CPU, the weights are on {device.type}; "
            "move the model, or use_backend(model, 'reference')"
        )
    if operator.site.kind == "depthwise":
        return _Depthwise(operator)
    return _GroupedConv(operator) if getattr(operator, "groups", 1) > 1 else _Product(operator)


class _Native:
    """What the two kinds of operator share: their input, their epilogue, their shapes."""

    def __init__(self, operator: QuantOperator) -> None:
        # no reference to the operator, which owns this: its memory goes with it at once
        self._act = _activation(operator)
        self._fixed = operator._buffers.get("act_radius")
        linear = isinstance(operator, nn.Linear)
        self._sides = None if linear else sides(operator)
        self._surround = None if linear else surround(operator)
        self._activation = activation_of(operator.followers)
        self._shared = operator.shared
        self._group = product_group(operator.site)
        self._settings = _settings(self._act, self._group)
        self._spec = quant_spec(*self._settings)

    def __call__(self, x: Tensor) -> Tensor:
        if self._sides is None:
            rows = x.reshape(-1, x.shape[-1])
            y = self._rows(rows, Window((1, 1, rows.shape[0])))
            return y.view(*x.shape[:-1], -1)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        if self._surround is not None:
            maps = F.pad(maps, *self._surround)
        window = Window((maps.shape[0], maps.shape[2], maps.shape[3]), *self._sides)
        y = self._rows(maps, window)
        y = y.view(maps.shape[0], *window.out, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        raise NotImplementedError

    def _codes(self, x: Tensor) -> Codes:
        if self._shared is None or torch.compiler.is_compiling():
            return self._encode(x)
        return self._shared.codes(x, self._encode)

    def _encode(self, x: Tensor) -> Codes:
        act, compiling = self._act, torch.compiler.is_compiling()
        if act.mode == "per_token_group":
            if compiling:
                ops = torch.ops.codtdq
                codes, step, sums = ops.encode_groups(x, self._group, *self._settings)
                return Codes(codes, step, sums, act.bits)
            return encode_groups(x, self._spec, self._group)
        radius, step = shared_range(x, act, self._fixed)
        if compiling:
            ops = torch.ops.codtdq
            codes, sums = ops.encode_fixed(x, self._group, act.bits, radius, step)
            return Codes(codes, step, sums, act.bits)
        return encode_fixed(x, act.bits, radius, step, self._group)


class _Product(_Native):
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator) -> None:
        super().__init__(operator)
        packed = operator.packed_weight()
        assert operator.site.weight is not None
        scale, self._bias = folded(operator, packed.scale)
        self._weights = PackedWeights.pack(
            packed.codes(), scale, self._group, operator.site.weight.group_size
        )

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes, weights = self._codes(x), self._weights
        if torch.compiler.is_compiling():
            return torch.ops.codtdq.product(
                *codes, weights.packed, weights.scales, weights.shape, weights.group,
                weights.weight_group, *window, self._bias, self._activation,
            )  # fmt: skip
        return product(codes, weights, window, self._bias, self._activation)


class _GroupedConv(_Native):
    """A dense convolution in groups of channels."""

    def __init__(self, operator: Any) -> None:
        super().__init__(operator)
        packed = operator.packed_weight()
        scale, self._bias = folded(operator, packed.scale)
        self._finer, codes = conv_group(operator.site, operator), packed.codes()
        each = operator.out_channels // operator.groups
        self._weights = [
            PackedWeights.pack(codes[at : at + each], scale[at : at + each], self._finer)
            for at in range(0, operator.out_channels, each)
        ]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes = finer_groups(self._codes(x), self._group, self._finer)
        return grouped_product(codes, self._weights, window, self._bias, self._activation)


class _Depthwise(_Native):
    """Depthwise convolutions: a step for each token group and tap, the taps in one loop."""

    def __init__(self, operator: Any) -> None:
        super().__init__(operator)
        weight, self._bias = folded(operator, operator.packed_weight().dequantize())
        taps = weight.flatten(2).squeeze(1).t()  # [T, O]
        # with a multiplier m, outputs c m .. c m + m - 1 belong to channel c
        self._times = operator.out_channels // operator.in_channels
        self._taps = [taps[:, i :: self._times].contiguous() for i in range(self._times)]
        self._biases = [
            None if self._bias is None else self._bias[i :: self._times].contiguous()
            for i in range(self._times)
        ]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes = self._codes(x)
        run: Any = torch.ops.codtdq.depthwise if torch.compiler.is_compiling() else _depthwise
        parts = [
            run(*codes, self._group, taps, *window, bias, self._activation)
            for taps, bias in zip(self._taps, self._biases)
        ]
        return parts[0] if self._times == 1 else torch.stack(parts, 2).flatten(1)


def shared_range(x: Tensor, act: ActivationSpec, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
    """(radius, step) that tokens share, [1] or [C], exactly as the reference finds them.

    x: rows [N, C] or maps [B, C, *positions]; fixed: calibrated radii.
    """
    if fixed is None and (act.tau is not None or act.zero_ratio is not None or act.percentile):
        tokens = x if x.ndim == 2 else x.flatten(2).transpose(1, 2)
        found = project(split(tokens, act), act)
        return found.radius, found.step
    each = act.mode == "per_channel"
    if torch.compiler.is_compiling():
        radius = torch.ops.codtdq.largest_magnitude(x, each)
    else:
        radius = largest_magnitude(x, per_channel=each)
    if fixed is not None:  # a NaN in the input still shows
        radius = torch.where(radius.isnan(), radius, fixed.float())
    radius = radius.clamp(min=EPS)
    return radius, step_of(radius, act.bits)


def encoding(operator: QuantOperator) -> Hashable:
    """What operators must agree on to share the codes of one input; None is never shared."""
    act = operator.site.activation
    assert act is not None
    fixed = operator._buffers.get("act_radius") is not None
    return id(operator) if fixed else (act, product_group(operator.site), operator.site.inputs)


def _activation(operator: QuantOperator) -> ActivationSpec:
    assert operator.site.activation is not None
    return operator.site.activation


def _settings(act: ActivationSpec, group: int) -> tuple[Any, ...]:
    """How token groups get their range, as `quant_spec` takes it."""
    guarded = act.projection == "guarded"
    return act.bits, group, act.literal, guarded, act.percentile, act.tau, act.zero_ratio


def folded(operator: BackedOperator, scale: Tensor) -> tuple[Tensor, Tensor | None]:
    """(scales [O, ...] of the weight, bias [O]) with a batch norm that follows inside."""
    affine = affine_of(operator.followers)
    bias = operator._parameters["bias"]
    if affine is None:
        return scale, None if bias is None else bias.detach().float().contiguous()
    factor, offset = affine
    if bias is not None:
        offset = offset + bias.detach().double() * factor
    wide = factor.view(-1, *(1 for _ in scale.shape[1:]))
    return (scale.double() * wide).float(), offset.float()


def sides(operator: Any) -> list[tuple[int, int]]:
    """Kernel, stride, padding and dilation as (height, width); padding other than zeros is 0."""
    padding = padding_of(operator) if operator.padding_mode == "zeros" else (0,) * 2
    values = (operator.kernel_size, operator.stride, padding, operator.dilation)
    return [pair(value, blank) for value, blank in zip(values, (1, 1, 0, 1))]


def surround(operator: Any) -> tuple[tuple[int, ...], str] | None:
    """Arguments of F.pad for padding that repeats the map: its tokens have the same codes."""
    if operator.padding_mode == "zeros":
        return None
    height, width = pair(padding_of(operator) or (0,), 0)
    return (width, width, height, height), operator.padding_mode
