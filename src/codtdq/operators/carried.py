"""The simulated product of carriers: the numbers of an engine, bit by bit, in plain torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from codtdq.numerics import carrier
from codtdq.numerics.carrier import Carried
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.lowered import Unlowered


class WholeWeight(NamedTuple):
    """A weight as whole numbers and a factor for each output."""

    values: Tensor  # [O, T, I], in a float type in which sums are exact
    factor: Tensor  # [O]
    cuts: tuple[int, ...] = ()  # inputs at which sums are cut, to be exact (`carrier.exact_cuts`)


def whole_weight(scheme: WeightScheme) -> WholeWeight | None:
    """The whole numbers of a weight; None where its scales are float."""
    lowered = scheme.lower()
    if isinstance(lowered, Unlowered):
        return None
    whole = lowered.whole()
    return WholeWeight(whole.to(carrier.exact_dtype(whole)), lowered.factor)


def carried_product(
    operator: Any, x: Carried, shape: torch.Size, weight: WholeWeight, bias: Tensor | None
) -> Tensor:
    """What an operator gives for the carriers of an input of this shape."""
    if isinstance(operator, nn.Linear):
        y = carrier.linear(x, weight.values, weight.factor, bias, cuts=weight.cuts)
        return y.reshape(*shape[:-1], -1)
    flat = isinstance(operator, nn.Conv1d)
    pads = operator._reversed_padding_repeated_twice  # left, right, top, bottom
    if flat:
        pads = [*pads, 0, 0]
    mode = "constant" if operator.padding_mode == "zeros" else operator.padding_mode
    one, two = (lambda v: (1, v[0])) if flat else (lambda v: v), (1,) if flat else ()
    maps = (shape[0], *two, *shape[2:])
    y, out = carrier.convolution(
        x,
        (maps[0], maps[1], maps[2]),
        weight.values,
        one(operator.kernel_size),
        weight.factor,
        bias,
        stride=one(operator.stride),
        pads=tuple(pads),
        mode=mode,
        dilation=one(operator.dilation),
        groups=operator.groups,
        cuts=weight.cuts,
    )
    y = y.reshape(shape[0], *out, -1).permute(0, 3, 1, 2)
    return y.squeeze(2) if flat else y
