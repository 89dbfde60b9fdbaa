"""Channel-aware grouping (CAG of AHCPTQ): channels share a few static grids.

Learning starts with one grid (s_c, z_c) per channel; after 20, 40, 60 and 80 % of the steps k-means
joins them to 32, 16, 8 and 4 groups. Both coordinates are brought to unit deviation first: zero-
points (0 to 15) would outweigh steps (around 0.01) otherwise. A group's grid spans the ranges of
all its channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codtdq.methods.rivals.learning import LearnableInput, lsq
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, grid_of
from codtdq.schemes.base import InputScheme
from codtdq.schemes.stored import BITS, Stored, one_of, rules

GROUPS = 4
STAGES = ((0.2, 8), (0.4, 4), (0.6, 2), (0.8, 1))  # share of steps, multiple of the last groups
_ROUNDS = 50  # of k-means, which settles long before


class GroupedUniform(InputScheme):
    """Asymmetric static grids, one per group of channels. step, zero: [G]; group: [C]."""

    kind = "grouped-uniform"
    accepts = rules(bits=BITS)
    step: Tensor
    zero: Tensor
    group: Tensor

    def __init__(
        self,
        bits: int,
        *,
        step: Tensor | None = None,
        zero: Tensor | None = None,
        group: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.code_bits = bits
        self.register_buffer("step", torch.ones(1) if step is None else step.detach().float())
        self.register_buffer("zero", torch.zeros(1) if zero is None else zero.detach().float())
        kept = torch.zeros(1) if group is None else group
        self.register_buffer("group", kept.to(torch.uint8))

    @classmethod
    def of_channels(
        cls, step: Tensor, zero: Tensor, bits: int, groups: int = GROUPS
    ) -> GroupedUniform:
        """Group channels by their own grids step, zero [C]."""
        shared_step, shared_zero, group = grouped(step, zero, groups, bits)
        return cls(bits, step=shared_step, zero=shared_zero, group=group)

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A group of each channel, a grid of each group."""
        groups = self.step.shape[0] if 1 <= self.step.numel() <= 256 else 1
        return {
            "step": one_of((groups,), low=0),
            "zero": one_of((groups,)),
            "group": one_of((channels,), low=0, high=groups - 1),
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize each channel with the grid of its group."""
        group = self.group.long()
        limits = code_limits(self.code_bits, symmetric=False)
        return fake_shifted(tokens, self.step[group], self.zero[group], *limits)

    def bits(self, channels: int) -> float:
        """Fixed grids and groups travel with the model."""
        return float(self.code_bits)

    def settings(self) -> dict[str, Any]:
        """Width."""
        return {"bits": self.code_bits}


class LearnedGroups(LearnableInput):
    """Steps that are learned per channel first, then per group, in ever fewer groups."""

    zero: Tensor
    group: Tensor

    def __init__(self, step: Tensor, zero: Tensor, bits: int, groups: int = GROUPS) -> None:
        super().__init__()
        self.bits = bits
        self.step = nn.Parameter(step.detach().clone())
        self.register_buffer("zero", zero.detach().clone())
        self.register_buffer("group", torch.arange(step.numel()))
        self._stages = [(share, multiple * groups) for share, multiple in STAGES]

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize with the grids as they are now."""
        step, zero = self.step[self.group], self.zero[self.group]
        return lsq(tokens, step, zero, *code_limits(self.bits, symmetric=False))

    def advance(self, share: float) -> bool:
        """Join groups when a stage is reached."""
        changed = False
        while self._stages and share >= self._stages[0][0]:
            changed = self._join(self._stages.pop(0)[1]) or changed
        return changed

    def frozen(self) -> InputScheme:
        """The groups of the last stage, joined here if too few steps were taken to reach it."""
        self.advance(1.0)
        step = self.step.detach().clamp(min=EPS)
        return GroupedUniform(self.bits, step=step, zero=self.zero, group=self.group)

    def _join(self, groups: int) -> bool:
        if self.step.numel() <= groups:
            return False
        step = self.step.detach().clamp(min=EPS)[self.group]
        zero = self.zero[self.group]
        shared, self.zero, self.group = grouped(step, zero, groups, self.bits)
        self.step = nn.Parameter(shared)
        return True


def grouped(step: Tensor, zero: Tensor, groups: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """(steps [G], zero-points [G], group of each channel [C]) from grids per channel [C]."""
    groups = min(groups, step.numel())
    raw = torch.stack([step, zero], 1)
    spread = raw.std(0, correction=0)
    unit = (raw - raw.mean(0)) / torch.where(spread > 0, spread, 1.0)
    group = k_means(unit, groups)
    low, high = -zero * step, (2**bits - 1 - zero) * step
    lows = torch.stack([low[group == g].amin() for g in range(groups)])
    highs = torch.stack([high[group == g].amax() for g in range(groups)])
    return (*grid_of(lows, highs, bits, symmetric=False), group)


def k_means(points: Tensor, groups: int) -> Tensor:
    """Group of each point [C, D] -> [C]: Lloyd's iterations from far-apart points, none empty."""
    centres = points[_spread_out(points, groups)]
    group = torch.zeros(points.shape[0], dtype=torch.long)
    for _ in range(_ROUNDS):
        distance = torch.cdist(points, centres)
        found = distance.argmin(1)
        _fill_empty(found, distance, groups)
        if torch.equal(found, group):
            break
        group = found
        centres = torch.stack([points[group == g].mean(0) for g in range(groups)])
    return group


def _spread_out(points: Tensor, groups: int) -> list[int]:
    """Indices: the point next to the mean, then always the one farthest from those chosen."""
    chosen = [int((points - points.mean(0)).square().sum(1).argmin())]
    while len(chosen) < groups:
        distance = torch.cdist(points, points[chosen]).amin(1)
        distance[chosen] = -1.0  # equal points: still another one each time
        chosen.append(int(distance.argmax()))
    return chosen


def _fill_empty(group: Tensor, distance: Tensor, groups: int) -> None:
    """Give each empty group the point farthest from its centre in a group of several."""
    for empty in range(groups):
        if not bool((group == empty).any()):
            count = torch.bincount(group, minlength=groups)
            own = distance.gather(1, group[:, None])[:, 0]
            own = torch.where(count[group] > 1, own, -1.0)
            group[int(own.argmax())] = empty
