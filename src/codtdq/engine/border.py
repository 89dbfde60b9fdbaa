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
from codtdq.numerics.packing import NIBBLE_BITS, Nibbles, packed_width
from codtdq.operators.quantized import QuantOperator
from codtdq.schemes.lowered import MAX_TRIALS, LoweredInput, LoweredWeight, RowTransform

LOWEST_CODE, HIGHEST_CODE = -8, 7


def check_lowered(operator: QuantOperator, inputs: LoweredInput, weight: LoweredWeight) -> None:
    """Raise unless both lowered forms of an operator fit its shape."""
    shape = weight_shape(operator)
    _check(tuple(operator.weight_scheme.shape) == shape, operator, "a weight of another shape")
    _check_weight(operator, weight, shape)
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
    held, factor, whole, group = weight.held, weight.factor, weight.multiplier, weight.group
    _check(held.shape == (outputs, taps, inputs), operator, "codes of another shape")
    _check(weight.bits in (4, 8), operator, f"codes of {weight.bits} bits")
    if isinstance(held, Nibbles):
        packed = held.packed
        fits = packed.shape == (outputs, packed_width(taps * inputs, NIBBLE_BITS))
        _check(fits and packed.dtype is torch.uint8, operator, "nibbles of another shape")
    else:
        _check(held.dtype is torch.int8, operator, f"{held.dtype} codes")
        _check(weight.bits == 8 or _narrow(held), operator, "codes beyond 4 bits")
    _check(group is None or group >= 1, operator, f"weight groups of {group}")
    _check(factor.shape == (outputs,), operator, f"factors {list(factor.shape)}")
    if whole is not None:
        count = 1 if group is None else -(-inputs // group)
        _check(whole.dtype is torch.int8, operator, f"{whole.dtype} multipliers")
        fits = whole.shape == (outputs, taps, count)
        _check(fits, operator, f"multipliers {list(whole.shape)}")


def _narrow(codes: Tensor) -> bool:
    """Whether codes fit 4 bits; without memory, as a survey of kernels has them, there are none."""
    if codes.is_meta or not codes.numel():
        return True
    low, high = (int(value) for value in torch.aminmax(codes))
    return LOWEST_CODE <= low and high <= HIGHEST_CODE


def _check_input(operator: QuantOperator, inputs: LoweredInput) -> None:
    channels, how = operator.inputs, inputs.how
    _check(2 <= how.bits <= 8, operator, f"codes of {how.bits} bits")
    sound = how.group >= 1 and 1 <= how.trials <= MAX_TRIALS
    _check(sound, operator, "groups or trials beyond what a kernel takes")
    for vector in (inputs.step, inputs.zero):
        fits = vector is None or tuple(vector.shape) in ((1,), (channels,))
        _check(fits, operator, "steps of another length than its channels")
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
