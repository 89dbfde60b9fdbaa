"""The Triton kernels behind QuantLinear, QuantConv2d and QuantConv1d: the sibling of `cpu`.

Carriers are made by the operations of `numerics.carry`, on the device; products are kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.executors import doubled, folded, sides
from codtdq.engine.cpu.fit import Lowered, lowered, not_whole, padding_of
from codtdq.engine.cpu.products import Window
from codtdq.engine.fusion import activation_of
from codtdq.engine.triton.weights import SLAB, GpuWeights
from codtdq.numerics.carry import carry
from codtdq.numerics.rotation import rotate_blocks
from codtdq.operators import QuantOperator
from codtdq.operators.backed import Executor
from codtdq.planning.roles import kind_of
from codtdq.schemes.lowered import LoweredInput


def unsupported_reason(operator: QuantOperator) -> str | None:
    """Why an operator stays simulated; None if there is a kernel for it."""
    reason = not_whole(operator)
    if reason is not None or isinstance(operator, nn.Linear):
        return reason
    return _convolution_reason(operator)


def _convolution_reason(operator: Any) -> str | None:
    kind = kind_of(operator)
    if operator.padding_mode != "zeros" or padding_of(operator) is None:
        return f"padding {operator.padding_mode} {operator.padding}"
    if operator.groups > 1 and kind != "depthwise":
        return f"a convolution in {operator.groups} groups"
    if kind == "depthwise" and operator.out_channels != operator.in_channels:
        return "a depthwise convolution with a channel multiplier"
    return None


def executor_for(operator: QuantOperator) -> Executor:
    """A function that does what the operator's forward does, by kernels."""
    forms = lowered(operator)
    depthwise = kind_of(operator) == "depthwise"
    return _Depthwise(operator, forms) if depthwise else _Product(operator, forms)


def encode(form: LoweredInput, tokens: Tensor) -> Carriers:
    """Carriers of tokens [B, N, C], rows filled up to whole slabs."""
    if form.transform is not None:
        shift, scale, order, hadamard = form.transform
        if order is not None:
            tokens = tokens[..., order.long()]
        if shift is not None:
            tokens = tokens - shift
        if scale is not None:
            tokens = tokens / scale
        if hadamard:
            tokens = rotate_blocks(tokens)
    found = carry(tokens, form.how, form.step, form.zero)
    data = F.pad(found.values, (0, -found.values.shape[1] % SLAB)).contiguous()
    return Carriers(data, found.unit.contiguous(), found.unit_rows)


class _Kernels:
    """What the two kinds of operator share: their input, their epilogue, their shapes."""

    compiles = False

    def __init__(self, operator: QuantOperator, forms: Lowered) -> None:
        # Triton is imported here, not with the package
        from codtdq.engine.triton import products

        # no reference to the operator, which owns this: its memory goes with it at once
        self._products = products
        self._form = forms.inputs
        self._sides = None if isinstance(operator, nn.Linear) else sides(operator)
        self._activation = activation_of(operator.followers)
        self._shared = operator.shared

    def __call__(self, x: Tensor) -> Tensor:
        if self._sides is None:
            rows = x.reshape(-1, x.shape[-1])
            y = self._rows(rows, Window((1, 1, rows.shape[0])))
            return y.view(*x.shape[:-1], -1)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        window = Window((maps.shape[0], maps.shape[2], maps.shape[3]), *self._sides)
        y = self._rows(maps.flatten(2), window)
        y = y.view(maps.shape[0], *window.out, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        raise NotImplementedError

    def _carriers(self, x: Tensor) -> Carriers:
        found: Carriers = (
            self._encode(x) if self._shared is None else self._shared.codes(x, self._encode)
        )
        return found

    def _encode(self, x: Tensor) -> Carriers:
        return encode(self._form, x.unsqueeze(1) if x.ndim == 2 else x.transpose(1, 2))


class _Product(_Kernels):
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator, forms: Lowered) -> None:
        super().__init__(operator, forms)
        weight = doubled(forms.weight, self._form)
        factor, self._bias = folded(operator, weight.factor)
        self._weights = GpuWeights.pack(weight, factor)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        carriers = self._carriers(x)
        return self._products.product(carriers, self._weights, window, self._bias, self._activation)


class _Depthwise(_Kernels):
    """Depthwise convolutions."""

    def __init__(self, operator: QuantOperator, forms: Lowered) -> None:
        super().__init__(operator, forms)
        weight = forms.weight
        factor, self._bias = folded(operator, weight.factor)
        self._factor = factor.contiguous()
        self._taps = weight.whole().squeeze(2).t().to(torch.int8).contiguous()  # [T, C]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        carriers = self._carriers(x)
        return self._products.depthwise(
            carriers, self._taps, self._factor, window, self._bias, self._activation
        )
