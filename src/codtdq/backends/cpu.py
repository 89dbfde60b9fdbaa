"""The native engine behind QuantLinear, QuantConv2d and QuantConv1d."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.backends.fusion import activation_of, affine_of
from codtdq.errors import UnsupportedError
from codtdq.layers import QuantOperator
from codtdq.layers.quantized import Executor
from codtdq.native import library
from codtdq.native.operators import quant_spec
from codtdq.native.products import (
    Codes,
    Window,
    depthwise,
    encode_fixed,
    encode_groups,
    largest_magnitude,
    pair,
    product,
)
from codtdq.native.weights import PackedWeights
from codtdq.planning.plan import Site
from codtdq.quantizer.affine import EPS, step_of
from codtdq.quantizer.grouping import split
from codtdq.quantizer.projection import project
from codtdq.quantizer.spec import ActivationSpec


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


def obstacle(operator: QuantOperator) -> str | None:
    """Why an operator stays simulated, or None if the engine takes it."""
    site, act = operator.site, operator.site.activation
    if site.weight is None:
        return "its weight stays float"
    if site.weight.bits > 4:
        return f"its weight has {site.weight.bits} bits, more than 4"
    if act is None:
        return "its input stays float"
    if operator.compute_dtype is not torch.float32:
        return "compute_dtype is not fp32"
    if isinstance(operator, nn.Conv2d | nn.Conv1d):
        if operator.padding_mode != "zeros" or isinstance(operator.padding, str):
            return f"padding {operator.padding_mode} {operator.padding}"
        if operator.groups > 1 and site.kind != "depthwise":
            return f"a convolution in {operator.groups} groups"
        if site.kind == "depthwise" and operator.out_channels != operator.in_channels:
            return "a depthwise convolution with a channel multiplier"
    if act.mode == "per_channel" and site.kind != "depthwise":
        return "a range per channel does not factor out of a dense product"
    if act.mode == "per_token_group":
        if act.group_size > library.MAX_GROUP or act.group_size % 4:
            return f"activation groups of {act.group_size}"
    if site.kind != "depthwise" and site.weight.group_size is not None:
        group = product_group(site)
        if group % 4:
            return f"weight groups of {site.weight.group_size}, no multiple of 4"
        if site.weight.group_size % group and site.weight.group_size < site.inputs:
            return f"weight groups of {site.weight.group_size} inside groups of {group}"
    return None


def product_group(site: Site) -> int:
    """Channels that share one integer sum."""
    act = site.activation
    assert act is not None
    whole = -(-site.inputs // 4) * 4
    if act.mode == "per_token_group":
        # where all channels are one group, its padding need not be multiplied
        return act.group_size if act.literal else min(act.group_size, whole)
    return min(library.MAX_GROUP, whole) if site.weight is None or site.weight.group_size is None \
        else min(site.weight.group_size, whole)  # fmt: skip


def executor_for(operator: QuantOperator) -> Executor:
    """A function that does what the operator's forward does, natively."""
    device = operator.packed_weight().packed.device
    if device.type != "cpu":
        raise UnsupportedError(
            f"the native engine runs on the CPU, the weights are on {device.type}; "
            "move the model, or use_backend(model, 'reference')"
        )
    return _Depthwise(operator) if operator.site.kind == "depthwise" else _Product(operator)


class _Native:
    """What the two kinds of operator share: their input, their epilogue, their shapes."""

    def __init__(self, operator: QuantOperator) -> None:
        # no reference to the operator, which owns this: its memory goes with it at once
        self._act = _activation(operator)
        self._fixed = operator._buffers.get("act_radius")
        self._sides = None if isinstance(operator, nn.Linear) else _sides(operator)
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

    @staticmethod
    def _folded(operator: QuantOperator, scale: Tensor) -> tuple[Tensor, Tensor | None]:
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


class _Product(_Native):
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator) -> None:
        super().__init__(operator)
        packed = operator.packed_weight()
        assert operator.site.weight is not None
        scale, self._bias = self._folded(operator, packed.scale)
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


class _Depthwise(_Native):
    """Depthwise convolutions: a step for each token group and tap, the taps in one loop."""

    def __init__(self, operator: QuantOperator) -> None:
        super().__init__(operator)
        weight, self._bias = self._folded(operator, operator.packed_weight().dequantize())
        self._taps = weight.flatten(2).squeeze(1).t().contiguous()  # [T, C]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes = self._codes(x)
        if torch.compiler.is_compiling():
            return torch.ops.codtdq.depthwise(
                *codes, self._group, self._taps, *window, self._bias, self._activation
            )
        return depthwise(codes, self._group, self._taps, window, self._bias, self._activation)


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


def _sides(operator: Any) -> list[tuple[int, int]]:
    """Kernel, stride, padding and dilation as (height, width)."""
    values = (operator.kernel_size, operator.stride, operator.padding, operator.dilation)
    return [pair(value, blank) for value, blank in zip(values, (1, 1, 0, 1))]
