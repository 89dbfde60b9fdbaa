"""Which operators the native engine takes, and how their channels are cut for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from codtdq.numerics.spec import ActivationSpec
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.roles import kind_of
from codtdq.schemes.lowered import (
    MAX_GROUP,
    GroupGrid,
    LoweredInput,
    LoweredWeight,
    ProjectedForm,
    Unlowered,
)
from codtdq.schemes.weights import FloatWeight


def lowered_input(operator: QuantOperator) -> LoweredInput:
    """The input of an operator that an engine takes."""
    inputs = operator.input_scheme.lower()
    assert not isinstance(inputs, Unlowered)
    return inputs


def lowered_weight(operator: QuantOperator) -> LoweredWeight:
    """The weight of an operator whose products an engine takes."""
    weight = operator.weight_scheme.lower()
    assert not isinstance(weight, Unlowered)
    return weight


def weight_group(operator: QuantOperator) -> int | None:
    """Inputs that share a scale of the weight; a depthwise operator's taps are floats anyway."""
    weight = operator.weight_scheme.lower()
    return None if isinstance(weight, Unlowered) else weight.group


def not_int4(operator: QuantOperator) -> str | None:
    """Why an operator has no product of 4-bit weights and codes at all, on any engine."""
    weight, inputs = operator.weight_scheme.lower(), operator.input_scheme.lower()
    taps = kind_of(operator) == "depthwise" and not isinstance(operator.weight_scheme, FloatWeight)
    if isinstance(weight, Unlowered) and not taps:
        return weight.reason
    if isinstance(inputs, Unlowered):
        return inputs.reason
    if operator.compute_dtype is not torch.float32:
        return "compute_dtype is not fp32"
    return None


def unsupported_reason(operator: QuantOperator) -> str | None:
    """Why an operator stays simulated; None if the engine takes it."""
    reason = not_int4(operator) or _padding_reason(operator)
    if reason is not None:
        return reason
    inputs = lowered_input(operator)
    if isinstance(inputs, ProjectedForm):
        return _projected_reason(operator, inputs.spec)
    return _searched_reason(operator, inputs.grid)


def _padding_reason(operator: Any) -> str | None:
    if isinstance(operator, nn.Conv2d | nn.Conv1d) and padding_of(operator) is None:
        return f"padding {operator.padding} of an even kernel is not the same on both sides"
    return None


def _projected_reason(operator: QuantOperator, act: ActivationSpec) -> str | None:
    kind, groups = kind_of(operator), int(getattr(operator, "groups", 1))
    shared = weight_group(operator)
    if isinstance(operator, nn.Conv2d | nn.Conv1d):
        shaped = act.tau is not None or act.zero_ratio is not None or act.percentile is not None
        if operator.padding_mode != "zeros" and act.mode != "per_token_group" and shaped:
            return f"padding {operator.padding_mode} would count in a range that all tokens share"
        if groups > 1 and kind != "depthwise":
            if shared is not None:
                return "weight groups inside a convolution in groups"
            if conv_group(operator, act) % 4:
                return f"a convolution in {groups} groups of {operator.inputs} channels"
    if act.mode == "per_channel" and kind != "depthwise":
        return "a range per channel does not factor out of a dense product"
    if act.mode == "per_token_group" and (act.group_size > MAX_GROUP or act.group_size % 4):
        return f"activation groups of {act.group_size}"
    if kind != "depthwise" and shared is not None:
        group = product_group(operator.inputs, act, shared)
        if group % 4:
            return f"weight groups of {shared}, no multiple of 4"
        if shared % group and shared < operator.inputs:
            return f"weight groups of {shared} inside groups of {group}"
    return None


def _searched_reason(operator: QuantOperator, grid: GroupGrid) -> str | None:
    kind, groups = kind_of(operator), int(getattr(operator, "groups", 1))
    padding = getattr(operator, "padding_mode", "zeros")
    if grid.pixels:
        if padding != "zeros":
            return f"padding {padding} would move the pixels of a group"
        depthwise = kind == "depthwise"
        return None if depthwise else "a step per channel does not factor out of a dense product"
    if kind == "depthwise":
        return "token groups in front of a depthwise convolution are only simulated"
    if groups > 1:
        return f"a convolution in {groups} groups"
    if grid.group < operator.inputs and grid.group % 4:
        return f"groups of {grid.group}, no multiple of 4"
    weight = lowered_weight(operator)
    if weight.group is None or weight.factor is None:
        return "a searched grid needs a weight in groups"
    if weight.group % stored_group(operator.inputs, grid) and weight.group < operator.inputs:
        return f"weight groups of {weight.group} inside groups of {grid.group}"
    return None


def product_group(inputs: int, act: ActivationSpec, weight_group: int | None) -> int:
    """Channels that share one integer sum."""
    whole = -(-inputs // 4) * 4
    if act.mode == "per_token_group":
        # where all channels are one group, its padding need not be multiplied
        return act.group_size if act.literal else min(act.group_size, whole)
    return min(MAX_GROUP if weight_group is None else weight_group, whole)


def stored_group(inputs: int, grid: GroupGrid) -> int:
    """Room of a searched group in the codes; a single group is padded to whole words."""
    return min(grid.group, -(-inputs // 4) * 4)


def padding_of(operator: Any) -> tuple[int, ...] | None:
    """Padding on each side; None where torch's word for it means different sides."""
    if not isinstance(operator.padding, str):
        return operator.padding
    if operator.padding == "valid":
        return (0,) * len(operator.kernel_size)
    total = [gap * (k - 1) for gap, k in zip(operator.dilation, operator.kernel_size)]
    return None if any(t % 2 for t in total) else tuple(t // 2 for t in total)


def conv_group(operator: Any, act: ActivationSpec) -> int:
    """Channels that share one integer sum in a convolution in groups: whole activation groups, or
    whole groups of the convolution, or what divides both.
    """
    each = operator.in_channels // operator.groups
    return math.gcd(each, act.group_size if act.mode == "per_token_group" else MAX_GROUP)
