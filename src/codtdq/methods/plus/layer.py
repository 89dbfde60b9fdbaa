"""One operator: from moments of its data to codes, scales and a bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from codtdq.methods.plus.moments import DAMPING, Moments, Problem
from codtdq.methods.plus.rounding import (
    FACTORS,
    Rounded,
    compensated_codes,
    nearest_codes,
    refine,
    search_scales,
)
from codtdq.schemes.base import WeightScheme
from codtdq.schemes.weight_groups import GroupedWeight, ScaleFormat, group_index, weight_rows


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
    index = group_index(weight.shape, settings.group)
    rounded, scale_format = round_target(target, hessian, index, settings)
    store = GroupedWeight.from_codes(
        rounded.codes.flatten(0, 1),
        rounded.scales.flatten(0, 1),
        scale_format,
        weight.shape,
        settings.bits,
        settings.group,
    )
    if settings.correct_bias:
        bias = problem.bias(rounded.values).flatten()
    return FittedLayer(store, bias, ridge, judge.error(blocks), judge.error(rounded.values))


def round_target(
    target: Tensor, hessian: Tensor, index: Tensor, settings: LayerSettings
) -> tuple[Rounded, ScaleFormat]:
    """Scales and codes for targets [G, O, K] under H [G, K, K]; index: [K] group of each column."""
    scales, scale_format = search_scales(
        target,
        hessian.diagonal(dim1=1, dim2=2),
        index,
        settings.bits,
        signed=settings.search,
        factors=FACTORS if settings.search else (1.0,),
    )
    if settings.compensate:
        rounded = compensated_codes(target, hessian, scales, index, settings.bits)
    else:
        rounded = nearest_codes(target, scales, index, settings.bits)
    rounded = refine(rounded, target, hessian, settings.bits, scale_format, settings.sweeps)
    return rounded, scale_format


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
