"""Which operators the native engine takes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from codtdq.engine.border import check_lowered
from codtdq.errors import UnsupportedError
from codtdq.numerics.carrier import LONGEST_SUM
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.roles import kind_of
from codtdq.schemes.lowered import LoweredInput, LoweredWeight, Unlowered

MOST_TAPS = 1024  # of a depthwise kernel, whose sums are float32


class Lowered(NamedTuple):
    """Both sides of an operator."""

    inputs: LoweredInput
    weight: LoweredWeight


def lowered(operator: QuantOperator) -> Lowered:
    """The forms that an executor is made of, which fit the operator."""
    found = Lowered(lowered_input(operator), lowered_weight(operator))
    check_lowered(operator, *found)
    return found


def lowered_input(operator: QuantOperator) -> LoweredInput:
    """The input of an operator that an engine takes."""
    inputs = operator.input_scheme.lower()
    if isinstance(inputs, Unlowered):  # exchanged after an engine was chosen
        raise _only_simulated(operator, inputs)
    return inputs


def lowered_weight(operator: QuantOperator) -> LoweredWeight:
    """The weight of an operator whose products an engine takes."""
    weight = operator.weight_scheme.lower()
    if isinstance(weight, Unlowered):
        raise _only_simulated(operator, weight)
    return weight


def _only_simulated(operator: QuantOperator, found: Unlowered) -> UnsupportedError:
    name = operator.site.name or type(operator).__name__
    return UnsupportedError(f"{name} has a scheme that no engine executes: {found.reason}")


def not_whole(operator: QuantOperator) -> str | None:
    """Why an operator has no product of carriers at all, on any engine."""
    weight, inputs = operator.weight_scheme.lower(), operator.input_scheme.lower()
    if isinstance(weight, Unlowered):
        return weight.reason
    if isinstance(inputs, Unlowered):
        return inputs.reason
    if operator.compute_dtype is not torch.float32:
        return "compute_dtype is not fp32"
    _, taps, each = weight.shape
    if taps * each > LONGEST_SUM:
        return f"sums of {taps * each} products, more than {LONGEST_SUM}"
    return None


def unsupported_reason(operator: QuantOperator) -> str | None:
    """Why an operator stays simulated; None if the engine takes it."""
    reason = not_whole(operator)
    if reason is not None or isinstance(operator, nn.Linear):
        return reason
    return _convolution_reason(operator, lowered_input(operator))


def _convolution_reason(operator: Any, inputs: LoweredInput) -> str | None:
    if padding_of(operator) is None:
        return f"padding {operator.padding} of an even kernel is not the same on both sides"
    how, padding = inputs.how, operator.padding_mode
    if padding != "zeros":
        act = how.bounds
        if how.ranges == "pixel":
            return f"padding {padding} would move the pixels of a group"
        if inputs.step is None and act is not None and how.ranges != "group":
            if act.tau is not None or act.zero_ratio is not None or act.percentile is not None:
                return f"padding {padding} would count in a range that all tokens share"
    depthwise = kind_of(operator) == "depthwise"
    if depthwise and math.prod(operator.kernel_size) > MOST_TAPS:
        return (
            f"a depthwise kernel of {math.prod(operator.kernel_size)} taps, more than {MOST_TAPS}"
        )
    if inputs.doubled and (depthwise or operator.groups > 1):
        return "8-bit codes with a zero-point in front of a convolution in groups"
    return None


def padding_of(operator: Any) -> tuple[int, ...] | None:
    """Padding on each side; None where torch's word for it means different sides."""
    if not isinstance(operator.padding, str):
        return operator.padding
    if operator.padding == "valid":
        return (0,) * len(operator.kernel_size)
    total = [gap * (k - 1) for gap, k in zip(operator.dilation, operator.kernel_size)]
    return None if any(t % 2 for t in total) else tuple(t // 2 for t in total)
