"""DCRP: project each group's clip radius under two bounds (Eq. dcrp, Lemma 1).

C1 (Eq. tau_constraint): step <= tau * sigma.   C2 (Eq. zr_constraint): zero-bin mass <= zr.

Two readings share this file. `literal` is Algorithm S1 to the letter. The default one is the same
method made well defined:

- padded elements take part in no statistic;
- exact zeros are left out of C2's quantile and of the zero-bin mass: the grid reproduces them, so
  no evidence is lost;
- a bound that no radius can meet (sigma = 0, or a threshold under the step floor) is dropped for
  that group and reported as infeasible;
- C2's threshold is taken 2^-20 below the paper's, so that values that tie with the quantile
  survive and the zero-bin mass stays below zr instead of "approximately" below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from codtdq.numerics.affine import EPS, STD_EPS, decode, encode, qmax_of, step_of
from codtdq.numerics.grouping import Groups
from codtdq.numerics.spec import ActivationSpec

TIE_MARGIN = 1.0 - 2.0**-20  # more than the float32 error of 2 q_max Q / q_max
SHORT_ROW = 1024  # longer rows are better selected from than sorted
GUARD_FRACTIONS = (1.0, 0.75, 0.5, 0.25, 0.0)  # from the bound back to the base radius


class Active(IntEnum):
    """What set a group's radius."""

    BASE = 0  # the base radius: no bound is tighter
    C1 = 1  # the step-to-dispersion bound
    C2 = 2  # the zero-bin bound
    GUARDED = 3  # a bound is tighter, but costs more than it saves


INFEASIBLE_C1, INFEASIBLE_C2 = 1, 2  # bits of Projection.infeasible


@dataclass(frozen=True)
class Projection:
    """The radius of each group and how it came about. Every field has the shape of the groups
    without their last axis.
    """

    radius: Tensor  # float32, at least 1e-8; NaN where the group holds a NaN or an infinity
    step: Tensor  # float32
    active: Tensor  # uint8, values of Active; 0 without a radius
    infeasible: Tensor  # uint8, bits INFEASIBLE_C1 and INFEASIBLE_C2; 0 without a radius


def rank_of(share: float, count: Tensor | int) -> Tensor | int:
    """1-based rank ceil(share * count) of a k-th-value quantile, at least 1 (S2.2).

    The tiny offset keeps 0.07 * 100 at rank 7, where binary fractions would give 8.
    """
    if isinstance(count, int):
        return max(1, math.ceil(share * count - 1e-9))
    return torch.ceil(count.double() * share - 1e-9).clamp(min=1).long()


def kth_smallest(values: Tensor, rank: Tensor | int) -> Tensor:
    """The rank-th smallest element along the last axis: [..., n] -> [...]. NaN counts as largest.

    numpy orders short rows an order of magnitude faster than torch does on a CPU.
    """
    short = values.device.type == "cpu" and values.shape[-1] <= SHORT_ROW
    if short and not torch.compiler.is_compiling():
        ordered = torch.from_numpy(np.sort(values.detach().numpy(), axis=-1))
    elif isinstance(rank, int):
        return torch.kthvalue(values, rank, dim=-1).values
    else:
        ordered = values.sort(dim=-1).values
    if isinstance(rank, int):
        return ordered[..., rank - 1].clone()
    index = (rank - 1).clamp(max=values.shape[-1] - 1)
    return ordered.gather(-1, index.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def base_radius(groups: Groups, percentile: float | None) -> Tensor:
    """Base radius of each group: max |x|, or its p-quantile by k-th value (Eq. DSTG_clip)."""
    if percentile is None:
        return groups.magnitude().amax(dim=-1)
    rank = rank_of(percentile, groups.count())
    return kth_smallest(groups.magnitude(fill=math.inf), rank)


def group_std(groups: Groups) -> Tensor:
    """Standard deviation of each group, unbiased=False, plus 1e-12 (S4.8).

    Summed in float64 and rounded once, so that no order of summation shows in the result. The
    first element is taken off before squaring: a constant group has a deviation of exactly 0,
    and an offset costs no digits.
    """
    shifted = groups.values.double()
    shifted = shifted - shifted[..., :1]
    count: Tensor | int = groups.values.shape[-1]
    if groups.valid is not None:
        shifted = shifted.masked_fill_(~groups.valid, 0.0)
        count = groups.valid.sum(-1)
    total = shifted.sum(dim=-1)
    squares = shifted.square_().sum(dim=-1)
    variance = (squares - total.square() / count).clamp_(min=0.0) / count
    return (variance.sqrt_() + STD_EPS).float()


def project(groups: Groups, spec: ActivationSpec) -> Projection:
    """Radius of each group under the bounds of `spec`."""
    base = base_radius(groups, spec.percentile)
    if spec.literal:
        radius, active = _project_literal(groups, base, spec)
        infeasible = torch.zeros_like(active)
    else:
        radius, active, infeasible = _project_defined(groups, base, spec)
        if spec.projection == "guarded":
            radius, active = _guard(groups, base, radius, active, spec.bits)
    lost = ~all_finite(groups)  # no radius, and nothing that set it
    radius = radius.clamp(min=EPS).masked_fill(lost, math.nan)
    active, infeasible = active.masked_fill(lost, 0), infeasible.masked_fill(lost, 0)
    return Projection(radius, step_of(radius, spec.bits), active, infeasible)


def all_finite(groups: Groups) -> Tensor:
    """Whether a group holds no NaN and no infinity: its largest magnitude tells."""
    return groups.magnitude().amax(dim=-1).isfinite()


def _project_literal(groups: Groups, base: Tensor, spec: ActivationSpec) -> tuple[Tensor, Tensor]:
    """Algorithm S1, step 4: a bare minimum of the bounds, padding and zeros counted.

    "If both tau and zr are provided": with one of them alone the base radius stays.
    """
    qmax = qmax_of(spec.bits)
    active = torch.zeros_like(base, dtype=torch.uint8)
    if spec.tau is None or spec.zero_ratio is None:
        return base, active
    bound = qmax * spec.tau * group_std(groups)
    active = active.masked_fill(bound < base, Active.C1)
    radius = torch.minimum(base, bound)
    rank = rank_of(spec.zero_ratio, groups.values.shape[-1])
    bound = 2 * qmax * kth_smallest(groups.magnitude(), rank)
    active = active.masked_fill(bound < radius, Active.C2)
    return torch.minimum(radius, bound), active


def _project_defined(
    groups: Groups, base: Tensor, spec: ActivationSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """The default reading: bounds that no radius can meet are dropped, group by group."""
    qmax = qmax_of(spec.bits)
    floor = qmax * EPS  # a smaller radius cannot make the step any smaller
    radius, active = base, torch.zeros_like(base, dtype=torch.uint8)
    infeasible = torch.zeros_like(active)
    if spec.tau is not None:
        bound = qmax * spec.tau * group_std(groups)
        feasible = bound >= floor
        infeasible = infeasible + (~feasible).to(torch.uint8) * INFEASIBLE_C1
        active = active.masked_fill(feasible & (bound < radius), Active.C1)
        radius = torch.where(feasible, torch.minimum(radius, bound), radius)
    if spec.zero_ratio is not None:
        bound = _zero_bin_bound(groups, radius, spec.zero_ratio, qmax, floor)
        feasible = bound >= floor
        infeasible = infeasible + (~feasible).to(torch.uint8) * INFEASIBLE_C2
        active = active.masked_fill(feasible & (bound < radius), Active.C2)
        radius = torch.where(feasible, torch.minimum(radius, bound), radius)
    return radius, active, infeasible


def _zero_bin_bound(
    groups: Groups, limit: Tensor, zero_ratio: float, qmax: int, floor: float
) -> Tensor:
    """C2's bound, or infinity for groups where it cannot bind (nothing to sort there).

    The k-th smallest bound lies under `limit` exactly when at least k elements' bounds do, and
    counting is far cheaper than ordering.
    """
    bounds = groups.magnitude() * (2 * qmax * TIE_MARGIN)  # monotone in |x|; zero on padding
    nonzero = groups.values != 0
    evidence = nonzero.sum(-1, dtype=torch.int32)
    rank = rank_of(zero_ratio, evidence)
    below = (nonzero & (bounds < limit.unsqueeze(-1))).sum(-1, dtype=torch.int32)
    needed = (below >= rank) | (limit < floor)
    needed &= evidence > 0
    result = torch.full_like(limit, math.inf)
    if torch.compiler.is_compiling():  # no course of a graph depends on values
        rows = bounds.masked_fill(~nonzero, math.inf)
        return torch.where(needed, kth_smallest(rows, rank), result)
    if not needed.is_meta and bool(needed.any()):  # a survey of kernels asks for shapes only
        rows = bounds[needed].masked_fill(~nonzero[needed], math.inf)
        ranks = rank[needed]  # type: ignore[index]
        uniform = int(ranks[0]) if bool((ranks == ranks[0]).all()) else ranks
        result[needed] = kth_smallest(rows, uniform)
    return result


def _guard(
    groups: Groups, base: Tensor, bounded: Tensor, active: Tensor, bits: int
) -> tuple[Tensor, Tensor]:
    """Between base and bounded radius, take the fixed fraction with the least squared error.

    Ties go to the bound: it is kept wherever it costs nothing.
    """
    tighter = bounded < base
    compiled = torch.compiler.is_compiling()  # a graph computes all groups and keeps these
    if not compiled and not bool(tighter.any()):
        return bounded, active
    some = ... if compiled else tighter
    x = groups.values[some]  # padding is zero and reproduced exactly: it adds no error
    low, high = bounded[some], base[some]
    best, least = low, torch.full_like(low, math.inf, dtype=torch.float64)
    for fraction in GUARD_FRACTIONS:
        radius = low if fraction == 1 else high if fraction == 0 else high + fraction * (low - high)
        radius = radius.clamp(min=EPS)
        step = step_of(radius, bits).unsqueeze(-1)
        error = x - decode(encode(x, radius.unsqueeze(-1), step, bits), step)
        total = error.double().square().sum(dim=-1)
        better = total < least
        best = torch.where(better, radius, best)
        least = torch.where(better, total, least)
    guarded = torch.where(best > low.clamp(min=EPS), int(Active.GUARDED), active[some])
    if compiled:
        return torch.where(tighter, best, bounded), torch.where(tighter, guarded, active)
    radius, active = bounded.clone(), active.clone()
    radius[tighter], active[tighter] = best, guarded
    return radius, active
