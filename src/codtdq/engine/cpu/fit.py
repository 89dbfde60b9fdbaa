"""Which operators the native engine takes, and how their channels are cut for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from codtdq.engine.cpu import library
from codtdq.planning.plan import Site


def not_int4(site: Site, compute_dtype: torch.dtype) -> str | None:
    """Why an operator has no product of 4-bit weights and codes at all, on any engine."""
    act = site.activation
    if site.weight is None:
        return "its weight stays float"
    if site.weight.bits > 4:
        return f"its weight has {site.weight.bits} bits, more than 4"
    if act is None:
        return "its input stays float"
    if compute_dtype is not torch.float32:
        return "compute_dtype is not fp32"
    return None


def obstacle(site: Site, operator: nn.Module, compute_dtype: torch.dtype) -> str | None:
    """Why an operator, float or quantized, stays simulated; None if the engine takes it."""
    act = site.activation
    reason = not_int4(site, compute_dtype)
    if reason is not None:
        return reason
    assert act is not None and site.weight is not None
    if isinstance(operator, nn.Conv2d | nn.Conv1d):
        if padding_of(operator) is None:
            return f"padding {operator.padding} of an even kernel is not the same on both sides"
        shaped = act.tau is not None or act.zero_ratio is not None or act.percentile is not None
        if operator.padding_mode != "zeros" and act.mode != "per_token_group" and shaped:
            return f"padding {operator.padding_mode} would count in a range that all tokens share"
        if operator.groups > 1 and site.kind != "depthwise":
            if site.weight.group_size is not None:
                return "weight groups inside a convolution in groups"
            if conv_group(site, operator) % 4:
                return f"a convolution in {operator.groups} groups of {site.inputs} channels"
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


def padding_of(operator: Any) -> tuple[int, ...] | None:
    """Padding on each side; None where torch's word for it means different sides."""
    if not isinstance(operator.padding, str):
        return operator.padding
    if operator.padding == "valid":
        return (0,) * len(operator.kernel_size)
    total = [gap * (k - 1) for gap, k in zip(operator.dilation, operator.kernel_size)]
    return None if any(t % 2 for t in total) else tuple(t // 2 for t in total)


def conv_group(site: Site, operator: Any) -> int:
    """Channels that share one integer sum in a convolution in groups: whole activation groups, or
    whole groups of the convolution, or what divides both.
    """
    each = operator.in_channels // operator.groups
    act = site.activation
    assert act is not None
    return math.gcd(each, act.group_size if act.mode == "per_token_group" else library.MAX_GROUP)
