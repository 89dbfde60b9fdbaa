"""From values to carriers: float steps become a unit, whole multipliers and signed bytes.

Of the float32 steps s that a scheme chose, with M as `numerics.carrier` has it:

    u = max(s) * (1 / M)      m = clamp(ceil(s * (1 / u)), 1, M)      q = rint(x * (1 / (u m))) + z

and floor instead of ceil where a bound of DCRP (Eq. dcrp) set the step, which then may not grow.
The largest step is that of a token, of an image, or of a channel of an image: whatever shares u.

`trials` multipliers may be tried: m, m - 1, ... under the zero-point of the first. The least sum of
squared errors wins, in which values that fall to zero count `1 + zero_weight` times. Sums have an
order of their own (`_in_lanes`, `_one_by_one`), so that no kernel chooses differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.numerics.acceleration import faster
from codtdq.numerics.affine import code_limits, grid_of
from codtdq.numerics.carrier import LARGEST, Carried, most_multiplier
from codtdq.numerics.grouping import merge, split
from codtdq.numerics.projection import Active, all_finite, project
from codtdq.numerics.spec import ActivationSpec

LEAST_STEP = 1e-30
LANES = 16  # partial sums of a token group's errors
RANGES = ("group", "pixel", "tensor", "channel")
UNITS = ("token", "image", "channel")


class CarrySpec(NamedTuple):
    """How an input [B, N, C] becomes carriers."""

    bits: int
    ranges: str  # group: channels of a token; pixel: pixels of a channel; tensor, channel: shared
    unit: str  # what has a unit of its own: a token, an image, or a channel of an image
    group: int = 32  # values of a token group or of a pixel group
    asymmetric: bool = False
    trials: int = 1  # multipliers that are tried for a group
    zero_weight: float = 0.0
    bounds: ActivationSpec | None = None  # DCRP, of symmetric token groups and shared ranges

    @property
    def multiplier_bits(self) -> int:
        """Bits of a multiplier."""
        fits = self.bits <= (7 if self.asymmetric else 8)
        most = most_multiplier(self.bits, self.asymmetric) if fits else 1
        return (most - 1).bit_length()


class _Grid(NamedTuple):
    """One entry for each group or channel."""

    multiplier: Tensor
    inverse: Tensor  # 1 / (u m)
    low: Tensor  # least and largest q - z
    high: Tensor


def carry(
    tokens: Tensor, how: CarrySpec, step: Tensor | None = None, zero: Tensor | None = None
) -> Carried:
    """Carriers of tokens [B, N, C], all tokens of the batch one after the other.

    step, zero: of ranges that are fixed, [1] or [C].
    """
    found = faster("carry", tokens, how, step, zero)
    if found is not None:
        assert isinstance(found, Carried)
        return found
    _, positions, channels = tokens.shape
    rows = tokens.reshape(-1, channels).float()
    unit_rows = 1 if how.unit == "token" else max(positions, 1)
    if how.ranges == "pixel":
        return carry_pixels(rows, how, max(positions, 1))
    if how.ranges == "group":
        return carry_groups(
            rows,
            group_spec(how),
            asymmetric=how.asymmetric,
            unit_rows=unit_rows,
            trials=how.trials,
            zero_weight=how.zero_weight,
        )
    if step is None:
        step = shared_step(tokens, how)
    return carry_fixed(
        rows, how.bits, step, zero, unit_rows=unit_rows, own_units=how.unit == "channel"
    )


def group_spec(how: CarrySpec) -> ActivationSpec:
    """The ranges of token groups."""
    if how.bounds is not None:
        return how.bounds
    return ActivationSpec(bits=how.bits, group_size=how.group, tau=None, zero_ratio=None)


def shared_step(tokens: Tensor, how: CarrySpec) -> Tensor:
    """The step [1] or [C] that all tokens share, found in them; NaN if one is not finite."""
    assert how.bounds is not None
    groups = split(tokens, how.bounds)
    return project(groups, how.bounds).step


def carry_groups(
    x: Tensor,
    spec: ActivationSpec,
    *,
    asymmetric: bool = False,
    unit_rows: int = 1,
    trials: int = 1,
    zero_weight: float = 0.0,
) -> Carried:
    """Carriers of rows x [N, C], token group by token group.

    Symmetric under the ranges of `spec` (DSTG, DCRP), or asymmetric from the least to the largest
    value of each group, zero included.
    """
    most = most_multiplier(spec.bits, asymmetric)
    groups = split(x, spec)  # [N, K, g]
    if asymmetric:
        step, least = _spans(groups.values, spec.bits)
        step = step.masked_fill(~(all_finite(groups) & step.isfinite()), torch.nan)
        bounded = torch.zeros_like(step, dtype=torch.bool)
    else:
        found = project(groups, spec)
        step, least = found.step, torch.zeros_like(found.step)
        bounded = (found.active == Active.C1) | (found.active == Active.C2)
    unit = _unit(_blocks(step, unit_rows), most)  # [units]
    each = unit.repeat_interleave(unit_rows)[: x.shape[0]].unsqueeze(1)  # [N, 1]
    grid = _grid(step, least, each, bounded, spec.bits, asymmetric)
    if trials > 1:
        grid = _best(groups.values, grid, each, trials, zero_weight, _in_lanes)
    lost = each.isnan()
    values = merge(_carried(groups.values, grid), x.shape, spec).masked_fill(lost, 0.0)
    multiplier = _whole(grid.multiplier.masked_fill(lost, 0.0))
    return Carried(_bytes(values), unit, multiplier, unit_rows)


def carry_pixels(x: Tensor, how: CarrySpec, positions: int) -> Carried:
    """Carriers of rows x [B N, C]: `how.group` pixels of a channel share a multiplier [B K, C].

    A unit for each image [B] or for each channel of an image [B, C].
    """
    most = most_multiplier(how.bits, how.asymmetric)
    channels, size = x.shape[1], max(1, min(how.group, positions))
    short = -positions % size
    maps = F.pad(x.reshape(-1, positions, channels), (0, 0, 0, short))
    groups = maps.unflatten(1, (-1, size)).transpose(2, 3)  # [B, K, C, g]
    if how.asymmetric:
        step, least = _spans(groups, how.bits)
    else:
        step = grid_of(groups.amin(-1), groups.amax(-1), how.bits, symmetric=True)[0]
        least = torch.zeros_like(step)
    step = step.masked_fill(~(groups.isfinite().all(-1) & step.isfinite()), torch.nan)
    own = how.unit == "channel"
    per_unit = step.transpose(1, 2) if own else step.unsqueeze(1)  # [B, C or 1, ...]
    unit = _unit(per_unit.flatten(2).flatten(0, 1), most).reshape(step.shape[0], -1)
    each = unit.unsqueeze(1)  # [B, 1, C or 1]
    bounded = torch.zeros_like(step, dtype=torch.bool)
    grid = _grid(step, least, each, bounded, how.bits, how.asymmetric)
    if how.trials > 1:
        grid = _best(groups, grid, each, how.trials, how.zero_weight, _one_by_one)
    lost = each.isnan()
    values = _carried(groups, grid).masked_fill(lost.unsqueeze(-1), 0.0)
    rows = values.transpose(2, 3).flatten(1, 2)[:, :positions].reshape(-1, channels)
    multiplier = _whole(grid.multiplier.masked_fill(lost, 0.0)).flatten(0, 1)
    return Carried(_bytes(rows), unit if own else unit.squeeze(1), multiplier, positions)


def carry_fixed(
    x: Tensor,
    bits: int,
    step: Tensor,
    zero: Tensor | None = None,
    *,
    unit_rows: int = 1,
    own_units: bool = False,
) -> Carried:
    """Carriers of rows x [N, C] under given steps [1] or [C]: one range per tensor or per channel.

    zero: whole zero-points [1] or [C] in 0..2^bits - 1; None: symmetric codes. 8 bits with a
    zero-point take two bytes, whose sum q - z then is. own_units: steps of channels are units.
    All units are the same, but for those of rows that are not finite.
    """
    double = zero is not None and bits == 8
    if not double:
        most_multiplier(bits, zero is not None)  # raises where the codes do not fit
    alone = step.numel() == 1 or own_units or double
    most = 1 if alone else most_multiplier(bits, zero is not None)
    checked = step.device.type != "meta" and not torch.compiler.is_compiling()
    if checked and bool(((step < LEAST_STEP) | step.isinf()).any()):
        raise ConfigError(
            f"steps from {float(step.min()):g} to {float(step.max()):g}; "
            f"accepted: finite, {LEAST_STEP:g} or more"
        )
    if double and step.numel() > 1:
        raise ConfigError("8-bit zero-points of channels; accepted: one for a whole tensor")
    rows, step = x.shape[0], step.float()
    unit = step.clone() if own_units else _unit(step.unsqueeze(0), most)  # [C] or [1]
    multiplier = _multipliers(step, unit, torch.zeros_like(step, dtype=torch.bool), most)
    shift = torch.zeros_like(step) if zero is None else zero.float()
    low, high = _limits(bits, zero is not None, shift)
    if double:
        low, high = low.clamp(min=-2 * LARGEST), high.clamp(max=2 * LARGEST)
    grid = _Grid(multiplier, _inverse(multiplier * unit), low, high)
    values = _carried(x.unsqueeze(-1), grid).squeeze(-1)
    wrong = ~x.isfinite()
    lost = wrong if own_units else wrong.any(1, keepdim=True)
    values = values.masked_fill(lost | unit.isnan(), 0.0)
    if double:
        half = (values * 0.5).floor()
        values = torch.cat((half, values - half), 1)
    units = unit.expand(-(-rows // unit_rows), -1)
    spoiled = _blocks(lost, unit_rows).unflatten(1, (unit_rows, -1)).any(1)
    units = units.masked_fill(spoiled, torch.nan)
    units = units if own_units else units.squeeze(1)
    return Carried(_bytes(values), units, _whole(multiplier.nan_to_num(0.0)), unit_rows, double)


def _spans(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Steps and least values, at most 0, of asymmetric groups [..., n]."""
    least, high = groups.amin(-1), groups.amax(-1)
    return grid_of(least, high, bits, symmetric=False)[0], least.clamp(max=0.0)


def _blocks(per_row: Tensor, unit_rows: int) -> Tensor:
    """[N, K] -> [units, unit_rows K], short blocks filled with zeros."""
    rows, count = per_row.shape
    short = -rows % unit_rows
    if short:
        per_row = torch.cat([per_row, per_row.new_zeros(short, count)])
    return per_row.reshape(-1, unit_rows * count)


def _unit(steps: Tensor, most: int) -> Tensor:
    """[units, n] -> [units]; NaN if a step is."""
    if not steps.shape[1]:
        return steps.new_zeros(steps.shape[0])
    return steps.amax(1) * _inverse(steps.new_full((), float(most)))


def _multipliers(step: Tensor, unit: Tensor, bounded: Tensor, most: int) -> Tensor:
    ratio = step * _inverse(unit)
    return torch.where(bounded, ratio.floor(), ratio.ceil()).clamp(1, most)


def _grid(
    step: Tensor, least: Tensor, unit: Tensor, bounded: Tensor, bits: int, asymmetric: bool
) -> _Grid:
    multiplier = _multipliers(step, unit, bounded, most_multiplier(bits, asymmetric))
    inverse = _inverse(multiplier * unit)
    low, high = _limits(bits, asymmetric, torch.round(-least * inverse))
    return _Grid(multiplier, inverse, low, high)


def _best(
    groups: Tensor,
    grid: _Grid,
    unit: Tensor,
    trials: int,
    zero_weight: float,
    total: Callable[[Tensor], Tensor],
) -> _Grid:
    """The multiplier with the least squared error of the first and the next smaller ones."""
    first, best, error = grid, grid, _loss(groups, grid, unit, zero_weight, total)
    for trial in range(1, trials):
        multiplier = (first.multiplier - trial).clamp(min=1.0)
        tried = first._replace(multiplier=multiplier, inverse=_inverse(multiplier * unit))
        loss = _loss(groups, tried, unit, zero_weight, total)
        better = loss < error
        error = torch.where(better, loss, error)
        best = _Grid(*(torch.where(better, new, old) for new, old in zip(tried, best)))
    return best


def _loss(
    groups: Tensor, grid: _Grid, unit: Tensor, zero_weight: float, total: Callable[[Tensor], Tensor]
) -> Tensor:
    codes = _codes(groups, grid)
    errors = groups - codes * (grid.multiplier * unit).unsqueeze(-1)
    squares = errors * errors
    if zero_weight:
        extra = torch.tensor(1.0) + torch.tensor(zero_weight)
        squares = torch.where(codes == 0, squares * extra.to(squares.device), squares)
    return total(squares)


def _in_lanes(x: Tensor) -> Tensor:
    """Sums of [..., n]: 16 partial ones, then 2 apart, neighbours, 4 apart, 8 apart."""
    short = -x.shape[-1] % LANES
    lanes = F.pad(x, (0, short)).unflatten(-1, (-1, LANES))
    sums = _one_by_one(lanes.transpose(-1, -2)).unflatten(-1, (4, 4))
    quads = (sums[..., 0] + sums[..., 2]) + (sums[..., 1] + sums[..., 3])
    return (quads[..., 0] + quads[..., 1]) + (quads[..., 2] + quads[..., 3])


def _one_by_one(x: Tensor) -> Tensor:
    """Sums of [..., n], first to last."""
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total


def _inverse(x: Tensor) -> Tensor:
    """1 / x, one division."""
    return torch.div(torch.ones_like(x), x)


def _limits(bits: int, asymmetric: bool, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest q - z."""
    low, high = code_limits(bits, not asymmetric)
    if not asymmetric:
        return torch.full_like(zero, max(low, -LARGEST)), torch.full_like(zero, high)
    zero = zero.clamp(low, high)
    return low - zero, high - zero


def _codes(x: Tensor, grid: _Grid) -> Tensor:
    """Codes clamp(rint(x / step)) of groups x [..., n], zero-points taken off."""
    q = torch.round(x * grid.inverse.unsqueeze(-1))
    return torch.minimum(torch.maximum(q, grid.low.unsqueeze(-1)), grid.high.unsqueeze(-1))


def _carried(x: Tensor, grid: _Grid) -> Tensor:
    return _codes(x, grid) * grid.multiplier.unsqueeze(-1)


def _bytes(values: Tensor) -> Tensor:
    return values.nan_to_num(0.0).to(torch.int8)


def _whole(multiplier: Tensor) -> Tensor:
    return multiplier.nan_to_num(0.0).to(torch.uint8)
