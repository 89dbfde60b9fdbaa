"""The last check in front of the kernels: lowered forms against the operator that they run.

A checkpoint is checked when it is read, but a scheme may also be written by hand, or changed in
memory. Kernels believe lengths and indices, so that they are compared here once, when an executor
is built, and never at run time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import UnsupportedError
from codtdq.operators.quantized import QuantOperator
from codtdq.schemes.lowered import (
    LoweredInput,
    LoweredWeight,
    ProjectedForm,
    RowTransform,
    Unlowered,
)

LOWEST_CODE, HIGHEST_CODE = -8, 7


def check_lowered(operator: QuantOperator) -> None:
    """Raise unless both lowered forms of an operator fit its shape."""
    shape = weight_shape(operator)
    _check(tuple(operator.weight_scheme.shape) == shape, operator, "a weight of another shape")
    weight = operator.weight_scheme.lower()
    if isinstance(weight, LoweredWeight):
        _check_weight(operator, weight, shape)
    inputs = operator.input_scheme.lower()
    if not isinstance(inputs, Unlowered):
        _check_input(operator, inputs)
    bias = operator._parameters["bias"]
    _check(bias is None or bias.shape == shape[:1], operator, "a bias of another length")


def weight_shape(operator: Any) -> tuple[int, ...]:
    """The shape that an operator's weight must have, from its own attributes."""
    if isinstance(operator, nn.Linear):
        return operator.out_features, operator.in_features
    each = operator.in_channels // operator.groups
    return operator.out_channels, each, *operator.kernel_size


def _check_weight(operator: QuantOperator, weight: LoweredWeight, shape: tuple[int, ...]) -> None:
    outputs, inputs, taps = shape[0], shape[1], math.prod(shape[2:])
    codes, scale, factor, group = weight.codes, weight.scale, weight.factor, weight.group
    _check(codes.shape == (outputs, taps, inputs), operator, "codes of another shape")
    _check(codes.dtype is torch.int8, operator, f"{codes.dtype} codes")
    low, high = (int(value) for value in torch.aminmax(codes))
    _check(LOWEST_CODE <= low and high <= HIGHEST_CODE, operator, "codes beyond 4 bits")
    _check(group is None or group >= 1, operator, f"weight groups of {group}")
    count = 1 if group is None else taps * -(-inputs // group)
    _check(scale.shape == (outputs, count), operator, f"scales {list(scale.shape)}")
    _check(factor is None or factor.numel() == outputs, operator, "factors of other outputs")


def _check_input(operator: QuantOperator, inputs: LoweredInput) -> None:
    channels = operator.inputs
    if isinstance(inputs, ProjectedForm):
        radius = inputs.radius
        fits = radius is None or tuple(radius.shape) in ((1,), (channels,))
        _check(fits, operator, "radii of another length")
        return
    reason = inputs.grid.unsupported_reason()
    _check(reason is None, operator, str(reason))
    sound = inputs.grid.group >= 1 and inputs.grid.trials >= 1
    _check(sound, operator, "groups or trials below 1")
    shift, scale, order, _ = inputs.transform or RowTransform()
    for vector in (shift, scale, order):
        fits = vector is None or tuple(vector.shape) == (channels,)
        _check(fits, operator, "a vector of another length than its channels")
    _check(order is None or is_permutation(order), operator, "an order that is no permutation")


def is_permutation(order: Tensor) -> bool:
    """Whether every index from 0 occurs once."""
    return torch.equal(order.long().sort().values, torch.arange(order.numel()))


def _check(sound: bool, operator: QuantOperator, found: str) -> None:
    if not sound:
        raise UnsupportedError(
            f"{operator.site.name or type(operator).__name__} has {found}; its scheme does not fit "
            "the operator: quantize the model again"
        )
