"""One operator: from moments of its data to codes, scales and a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.methods.plus.moments import DAMPING, Moments, Problem
from codtdq.methods.plus.rounding import (
    FACTORS,
    Format,
    Rounded,
    compensated_codes,
    nearest_codes,
    refine,
    search_scales,
)
from codtdq.numerics.carrier import weight_multiplier
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.multiplied import MultipliedWeight, MultiplierFormat
from codtdq.schemes.weight_groups import GroupedWeight, group_index, weight_rows


@dataclass(frozen=True)
class LayerSettings:
    """How weights are fitted."""

    bits: int
    group: int = 32
    compensate: bool = True  # GPTQ; else to nearest
    sweeps: int = 2  # of coordinate descent
    ridges: tuple[float, ...] = (0.01, 0.05, 0.3)  # of shifted targets; empty: the weight itself
    correct_bias: bool = True
    search: bool = True  # scales by their error; else the nearest that just covers
    whole: bool = True  # scales are whole multiples of one per output; else E4M3 numbers

    @property
    def stored_group(self) -> int:
        """Inputs that share a scale, 0: all; whole multiples of wide codes are no bytes."""
        return 0 if self.whole and weight_multiplier(self.bits) == 1 else self.group


@dataclass(frozen=True)
class FittedLayer:
    """The result, and its mean squared output errors on held-out images (if there are any)."""

    store: WeightScheme
    bias: Tensor | None
    ridge: float | None  # None: the float weight was the best target
    float_error: float  # of the float weight on quantized inputs
    error: float  # of the result


def fit_layer(
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    fit: Moments,
    held: Moments | None,
    settings: LayerSettings,
) -> FittedLayer:
    """Quantize a weight [O, C, *taps] of an operator with `groups` groups.

    The moments are used up: of a wide convolution's [K, K] there is no room for many.
    """
    rows = weight_rows(weight).float()
    blocks = rows.reshape(groups, -1, rows.shape[1])
    fixed = None
    if not settings.correct_bias:
        own = torch.zeros(weight.shape[0]) if bias is None else bias.float()
        fixed = own.reshape(groups, -1)
    known = unseen = ridge = None
    if held is not None and held.rows:
        unseen = held.problem(fixed)
        known = fit.problem(fixed) if settings.ridges else None
        fit.absorb(held)
        held.clear()
    if known is not None and unseen is not None:
        ridge = choose_ridge(blocks, known, unseen, settings.ridges)
        del known
    problem = fit.problem(fixed)
    fit.clear()
    target = blocks if ridge is None else problem.ridge(blocks, ridge)
    hessian = problem.damped(DAMPING if ridge is None else max(ridge, DAMPING / 10))
    judge = problem if unseen is None else unseen
    problem = problem.means()  # all that is asked of it from here on
    index = group_index(weight.shape, settings.stored_group)
    scales, scale_format = scales_of(target, hessian.diagonal(dim1=1, dim2=2), index, settings)
    rounded = round_target(target, hessian, scales, index, scale_format, settings)
    codes, scales = rounded.codes.flatten(0, 1), rounded.scales.flatten(0, 1)
    store = stored(codes, scales, scale_format, weight.shape, settings)
    if settings.correct_bias:
        bias = problem.bias(rounded.values).flatten()
    return FittedLayer(store, bias, ridge, judge.error(blocks), judge.error(rounded.values))


def scales_of(
    target: Tensor, importance: Tensor, index: Tensor, settings: LayerSettings
) -> tuple[Tensor, Format]:
    """Scales [G, O, groups] of targets [G, O, K], and their format; importance: [G, K]."""
    return search_scales(
        target,
        importance,
        index,
        settings.bits,
        signed=settings.search,
        factors=FACTORS if settings.search else (1.0,),
        whole=settings.whole,
    )


def round_target(
    target: Tensor,
    hessian: Tensor,
    scales: Tensor,
    index: Tensor,
    scale_format: Format,
    settings: LayerSettings,
) -> Rounded:
    """Codes of targets [G, O, K] under H [G, K, K], and scales that may have moved a little."""
    if settings.compensate:
        rounded = compensated_codes(target, hessian, scales, index, settings.bits)
    else:
        rounded = nearest_codes(target, scales, index, settings.bits)
    return refine(rounded, target, hessian, settings.bits, scale_format, settings.sweeps)


def stored(
    codes: Tensor, scales: Tensor, scale_format: Format, shape: Any, settings: LayerSettings
) -> WeightScheme:
    """The weight scheme of codes [O, K] and scales [O, groups]."""
    if isinstance(scale_format, MultiplierFormat):
        unit = scale_format.unit.flatten(0, 1)
        return MultipliedWeight.from_codes(
            codes, scales, unit, shape, settings.bits, settings.group
        )
    return GroupedWeight.from_codes(
        codes, scales, scale_format, shape, settings.bits, settings.group
    )


def choose_ridge(
    blocks: Tensor, known: Problem, unseen: Problem, ridges: tuple[float, ...]
) -> float | None:
    """The ridge whose target has the least error on held-out images; None: the weight itself."""
    best, error = None, unseen.error(blocks)
    for ridge in ridges:
        found = unseen.error(known.ridge(blocks, ridge))
        if found < error:
            best, error = ridge, found
    return best


def set_bias(module: nn.Module, bias: Tensor | None) -> None:
    """Give an operator its bias."""
    if bias is not None:
        module.bias = nn.Parameter(bias.clone(), requires_grad=False)
