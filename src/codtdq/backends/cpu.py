"""The native engine behind QuantLinear, QuantConv2d and QuantConv1d."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, cast

import torch
from torch import Tensor, nn

from codtdq.errors import UnsupportedError
from codtdq.layers import QuantOperator
from codtdq.layers.quantized import Executor
from codtdq.native import library
from codtdq.native.library import QuantSpec
from codtdq.native.products import (
    Codes,
    PackedWeights,
    depthwise,
    dequantized_channels,
    encode_fixed,
    encode_groups,
    geometry_of,
    largest_magnitude,
    product,
)
from codtdq.planning.plan import Site
from codtdq.quantizer.affine import EPS, step_of
from codtdq.quantizer.grouping import split
from codtdq.quantizer.projection import project


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


class _Product:
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator) -> None:
        self._operator, site = _reference(operator), operator.site
        assert site.activation is not None and site.weight is not None
        self._group = product_group(site)
        packed = operator.packed_weight()
        scale = packed.scale
        self._weights = PackedWeights(packed.codes(), scale, self._group, site.weight.group_size)
        act = site.activation
        self._spec = QuantSpec(
            act.bits, self._group, act.literal, act.projection == "guarded",
            act.percentile is not None, act.tau is not None, act.zero_ratio is not None, 0,
            act.percentile or 0.0, act.tau or 0.0, act.zero_ratio or 0.0,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        operator = self._operator
        bias = _bias(operator)
        if isinstance(operator, nn.Linear):
            rows = x.reshape(-1, x.shape[-1])
            geometry = geometry_of((1, 0, 1, rows.shape[0]), (1, 1), (1, 1), (0, 0), (1, 1))
            y = product(self._encode(rows), self._weights, geometry, bias, "none")
            return y.view(*x.shape[:-1], -1)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        geometry = geometry_of(maps.shape, *_sides(operator))
        y = product(self._encode(maps), self._weights, geometry, bias, "none")
        y = y.view(maps.shape[0], geometry.out_h, geometry.out_w, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)

    def _encode(self, x: Tensor) -> Codes:
        act = self._operator.site.activation
        assert act is not None
        if act.mode == "per_token_group":
            return encode_groups(x, self._spec, self._group)
        radius, step = shared_range(x, self._operator)
        return encode_fixed(x, act.bits, radius, step, self._group)


class _Depthwise:
    """Depthwise convolutions: codes and steps as in the reference, the taps in one loop."""

    def __init__(self, operator: QuantOperator) -> None:
        self._operator = _reference(operator)
        weight = operator.packed_weight().dequantize()
        self._taps = weight.flatten(2).squeeze(1).t().contiguous()  # [T, C]

    def __call__(self, x: Tensor) -> Tensor:
        operator = self._operator
        bias = _bias(operator)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        geometry = geometry_of(maps.shape, *_sides(operator))
        act = operator.site.activation
        assert act is not None
        if act.mode == "per_token_group":
            x_hat = operator.quantize_input(maps).x_hat.permute(0, 2, 3, 1)
            rows = x_hat.reshape(-1, maps.shape[1]).contiguous()
        else:
            rows = dequantized_channels(maps, act.bits, *shared_range(maps, operator))
        y = depthwise(rows, self._taps, geometry, bias, "none")
        y = y.view(maps.shape[0], geometry.out_h, geometry.out_w, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)


def shared_range(x: Tensor, operator: QuantOperator) -> tuple[Tensor, Tensor]:
    """(radius, step) that tokens share, [1] or [C], exactly as the reference finds them.

    x: rows [N, C] or maps [B, C, *positions].
    """
    act = operator.site.activation
    assert act is not None
    fixed = operator._buffers.get("act_radius")
    if fixed is None and (act.tau is not None or act.zero_ratio is not None or act.percentile):
        tokens = x if x.ndim == 2 else x.flatten(2).transpose(1, 2)
        found = project(split(tokens, act), act)
        return found.radius, found.step
    radius = largest_magnitude(x, per_channel=act.mode == "per_channel")
    if fixed is not None:  # a NaN in the input still shows
        radius = torch.where(radius.isnan(), radius, fixed.float())
    radius = radius.clamp(min=EPS)
    return radius, step_of(radius, act.bits)


def _reference(operator: QuantOperator) -> QuantOperator:
    """The operator, not kept alive: it owns its executor, whose memory goes with it at once."""
    return cast(QuantOperator, weakref.proxy(operator))


def _bias(operator: QuantOperator) -> Tensor | None:
    bias = operator._parameters["bias"]
    return None if bias is None else bias.detach().float().contiguous()


def _sides(operator: Any) -> list[tuple[int, int]]:
    """Kernel, stride, padding and dilation as (height, width)."""
    values = (operator.kernel_size, operator.stride, operator.padding, operator.dilation)
    neutral = (1, 1, 0, 1)
    return [
        (value[0], value[1]) if len(value) == 2 else (blank, value[0])
        for value, blank in zip(values, neutral)
    ]
