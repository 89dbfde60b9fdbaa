"""What executes an operator on the native engine: an encoder, a product, an epilogue."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.engine.cpu.encoders import encoder_for
from codtdq.engine.cpu.fit import (
    conv_group,
    lowered_input,
    lowered_weight,
    padding_of,
    weight_group,
)
from codtdq.engine.cpu.operators import depthwise as _depthwise
from codtdq.engine.cpu.products import Codes, Window, finer_groups, grouped_product, pair, product
from codtdq.engine.cpu.searched import depthwise_pixels
from codtdq.engine.cpu.weights import PackedWeights
from codtdq.engine.fusion import activation_of, affine_of
from codtdq.operators.backed import BackedOperator, Executor
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.roles import kind_of
from codtdq.schemes.lowered import ProjectedForm


def executor_for(operator: QuantOperator) -> Executor:
    """A function that does what the operator's forward does, natively."""
    if kind_of(operator) == "depthwise":
        return _Depthwise(operator)
    return _GroupedConv(operator) if getattr(operator, "groups", 1) > 1 else _Product(operator)


class _Native:
    """What all kinds of operator share: their input, their epilogue, their shapes."""

    def __init__(self, operator: QuantOperator) -> None:
        # no reference to the operator, which owns this: its memory goes with it at once
        form, group = lowered_input(operator), weight_group(operator)
        self._encoder = encoder_for(form, operator.inputs, group)
        self.compiles = self._encoder.compiles
        linear = isinstance(operator, nn.Linear)
        self._sides = None if linear else sides(operator)
        self._surround = None if linear else surround(operator)
        self._activation = activation_of(operator.followers)
        self._shared = operator.shared

    def __call__(self, x: Tensor) -> Tensor:
        if self._sides is None:
            y = self._rows(x, Window((1, 1, x.numel() // x.shape[-1])))
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
        view = self._encoder.view(x, self._sides is None)
        if self._shared is None or torch.compiler.is_compiling():
            return self._encoder.encode(view)
        codes: Codes = self._shared.codes(view, self._encoder.encode, self._encoder.images(view))
        return codes


class _Product(_Native):
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator) -> None:
        super().__init__(operator)
        weight = lowered_weight(operator)
        scale, factor = weight.scale, weight.factor
        if factor is None:
            scale, self._bias = folded(operator, scale)
        else:
            factor, self._bias = folded(operator, factor)
        self._weights = PackedWeights.pack(
            weight.codes, scale, self._encoder.group, weight.group, factor
        )

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes, weights = self._codes(x), self._weights
        if torch.compiler.is_compiling():
            y: Tensor = torch.ops.codtdq.product(
                *codes,
                weights.packed,
                weights.scales,
                weights.shape,
                weights.group,
                weights.weight_group,
                *window,
                self._bias,
                self._activation,
            )
            return y
        return product(codes, weights, window, self._bias, self._activation)


class _GroupedConv(_Native):
    """A dense convolution in groups of channels."""

    def __init__(self, operator: Any) -> None:
        super().__init__(operator)
        inputs, weight = lowered_input(operator), lowered_weight(operator)
        assert isinstance(inputs, ProjectedForm)
        scale, self._bias = folded(operator, weight.scale)
        self._finer = conv_group(operator, inputs.spec)
        each = operator.out_channels // operator.groups
        self._weights = [
            PackedWeights.pack(weight.codes[at : at + each], scale[at : at + each], self._finer)
            for at in range(0, operator.out_channels, each)
        ]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes = finer_groups(self._codes(x), self._encoder.group, self._finer)
        return grouped_product(codes, self._weights, window, self._bias, self._activation)


class _Depthwise(_Native):
    """Depthwise convolutions: codes become floats line by line, the taps are few."""

    def __init__(self, operator: Any) -> None:
        super().__init__(operator)
        weight, bias = folded(operator, operator.weight_scheme.dequantize())
        taps = weight.flatten(2).squeeze(1).t()  # [T, O]
        # with a multiplier m, outputs c m .. c m + m - 1 belong to channel c
        self._times = operator.out_channels // operator.in_channels
        self._taps = [taps[:, i :: self._times].contiguous() for i in range(self._times)]
        self._biases = [
            None if bias is None else bias[i :: self._times].contiguous()
            for i in range(self._times)
        ]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes = self._codes(x)
        parts = [self._part(codes, *part, window) for part in zip(self._taps, self._biases)]
        return parts[0] if self._times == 1 else torch.stack(parts, 2).flatten(1)

    def _part(self, codes: Codes, taps: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        group = self._encoder.group
        if self._encoder.pixels:
            return depthwise_pixels(codes, group, taps, window, bias, self._activation)
        run: Any = torch.ops.codtdq.depthwise if torch.compiler.is_compiling() else _depthwise
        y: Tensor = run(*codes, group, taps, *window, bias, self._activation)
        return y


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
