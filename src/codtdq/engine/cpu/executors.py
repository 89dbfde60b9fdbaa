"""What executes an operator on the native engine: an encoder, a product, an epilogue."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.engine.cpu.carriers import (
    CarrierWeights,
    carrier_depthwise,
    carrier_product,
    grouped_carrier_product,
)
from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.encoders import Encoder
from codtdq.engine.cpu.fit import Lowered, lowered, padding_of
from codtdq.engine.cpu.products import Window, depthwise_outputs, pair
from codtdq.engine.fusion import activation_of, affine_of
from codtdq.engine.program.traced import Traced
from codtdq.operators.backed import BackedOperator, Executor
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.roles import kind_of
from codtdq.schemes.lowered import LoweredInput, LoweredWeight


def executor_for(operator: QuantOperator) -> Executor:
    """A function that does what the operator's forward does, natively."""
    forms = lowered(operator)
    if kind_of(operator) == "depthwise":
        return _Depthwise(operator, forms)
    grouped = getattr(operator, "groups", 1) > 1
    return _GroupedConv(operator, forms) if grouped else _Product(operator, forms)


class _Native:
    """What all kinds of operator share: their input, their epilogue, their shapes."""

    compiles = True  # every step has a name that torch's compiler knows

    def __init__(self, operator: QuantOperator, forms: Lowered) -> None:
        # no reference to the operator, which owns this: its memory goes with it at once
        self.encoder = Encoder(forms.inputs)
        linear = isinstance(operator, nn.Linear)
        self.sides = None if linear else sides(operator)
        self._surround = None if linear else surround(operator)
        self._activation = activation_of(operator.followers)
        self._shared = operator.shared

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(x, Traced):
            return self._record(x)
        if self.sides is None:
            y = self._rows(x, Window((1, 1, x.numel() // x.shape[-1])))
            return y.view(*x.shape[:-1], -1)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        if self._surround is not None:
            maps = F.pad(maps, *self._surround)
        window = Window((maps.shape[0], maps.shape[2], maps.shape[3]), *self.sides)
        y = self._rows(maps, window)
        y = y.view(maps.shape[0], *window.out, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)

    def _record(self, x: Traced) -> Tensor:
        """A node of a recording: what `lower` turns into instructions."""
        if self.sides is None:
            return x.recorder.record(
                "quantized", (x,), (*x.shape[:-1], self.outputs), executor=self
            )
        if self._surround is not None:
            x = cast("Traced", F.pad(x, *self._surround))
        maps = x.shape if x.ndim == 4 else (*x.shape[:2], 1, x.shape[2])
        out = Window((maps[0], maps[2], maps[3]), *self.sides).out
        shape = (maps[0], self.outputs, *(out if x.ndim == 4 else out[1:]))
        return x.recorder.record("quantized", (x,), shape, executor=self)

    @property
    def outputs(self) -> int:
        """Channels of the result."""
        raise NotImplementedError

    def lower(self, emitter: Any) -> None:
        """Say which product follows, for a captured run."""
        raise NotImplementedError

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        raise NotImplementedError

    def _carriers(self, x: Tensor) -> Carriers:
        view = self.encoder.view(x, self.sides is None)
        if self._shared is None or torch.compiler.is_compiling():
            return self.encoder.encode(view)
        carriers: Carriers = self._shared.codes(view, self.encoder.encode)
        return carriers


class _Product(_Native):
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator, forms: Lowered) -> None:
        super().__init__(operator, forms)
        weight = doubled(forms.weight, forms.inputs)
        factor, self._bias = folded(operator, weight.factor)
        self._weights = packed(weight, factor)

    @property
    def outputs(self) -> int:
        return self._weights.shape[0]

    def lower(self, emitter: Any) -> None:
        emitter.product(self._weights, self._bias, self._activation)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        carriers, weights = self._carriers(x), self._weights
        if torch.compiler.is_compiling():
            y: Tensor = torch.ops.codtdq.carrier_product(
                carriers.data,
                carriers.unit,
                carriers.unit_rows,
                weights.packed,
                weights.multiplier,
                weights.factor,
                weights.shape,
                weights.bits,
                weights.group,
                *window,
                self._bias,
                self._activation,
            )
            return y
        return carrier_product(carriers, weights, window, self._bias, self._activation)


class _GroupedConv(_Native):
    """A dense convolution in groups of channels."""

    compiles = False

    def __init__(self, operator: Any, forms: Lowered) -> None:
        super().__init__(operator, forms)
        weight = forms.weight
        factor, self._bias = folded(operator, weight.factor)
        each = operator.out_channels // operator.groups
        self._weights = [
            packed(weight.outputs(slice(at, at + each)), factor[at : at + each])
            for at in range(0, operator.out_channels, each)
        ]

    @property
    def outputs(self) -> int:
        return self._weights[0].shape[0] * len(self._weights)

    def lower(self, emitter: Any) -> None:
        emitter.grouped(self._weights, self._bias, self._activation)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        carriers = self._carriers(x)
        return grouped_carrier_product(
            carriers, self._weights, window, self._bias, self._activation
        )


class _Depthwise(_Native):
    """Depthwise convolutions."""

    def __init__(self, operator: Any, forms: Lowered) -> None:
        super().__init__(operator, forms)
        weight = forms.weight
        factor, bias = folded(operator, weight.factor)
        taps = weight.whole().squeeze(2).t().to(torch.int8)  # [T, O]
        # with a multiplier m, outputs c m .. c m + m - 1 belong to channel c
        self._times = operator.out_channels // operator.in_channels
        self._parts = [
            (
                taps[:, i :: self._times].contiguous(),
                factor[i :: self._times].contiguous(),
                None if bias is None else bias[i :: self._times].contiguous(),
            )
            for i in range(self._times)
        ]

    @property
    def outputs(self) -> int:
        return self._times * depthwise_outputs(self._parts[0][0].shape[1], self._activation)

    def lower(self, emitter: Any) -> None:
        emitter.depthwise(self._parts, self._activation)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        carriers = self._carriers(x)
        parts = [self._part(carriers, *part, window) for part in self._parts]
        return parts[0] if self._times == 1 else torch.stack(parts, 2).flatten(1)

    def _part(
        self, x: Carriers, taps: Tensor, factor: Tensor, bias: Tensor | None, window: Window
    ) -> Tensor:
        if torch.compiler.is_compiling():
            y: Tensor = torch.ops.codtdq.carrier_depthwise(
                x.data, x.unit, x.unit_rows, taps, factor, *window, bias, self._activation
            )
            return y
        return carrier_depthwise(x, taps, factor, window, bias, self._activation)


def packed(weight: LoweredWeight, factor: Tensor) -> CarrierWeights:
    """A weight in the engine's panels, with other factors."""
    return CarrierWeights.pack(
        weight.held, factor, weight.multiplier, group=weight.group, bits=weight.bits
    )


def doubled(weight: LoweredWeight, inputs: LoweredInput) -> LoweredWeight:
    """The weight that meets values of two bytes: once for either."""
    if not inputs.doubled:
        return weight
    whole = weight.whole().to(torch.int8).repeat(1, 1, 2)
    return LoweredWeight(whole, weight.factor, bits=8)


def folded(operator: BackedOperator, scale: Tensor) -> tuple[Tensor, Tensor | None]:
    """(factors [O] of the weight, bias [O]) with a batch norm that follows inside."""
    affine = affine_of(operator.followers)
    bias = operator._parameters["bias"]
    if affine is None:
        return scale, None if bias is None else bias.detach().float().contiguous()
    factor, offset = affine
    if bias is not None:
        offset = offset + bias.detach().double() * factor
    return (scale.double() * factor).float(), offset.float()


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
