"""The grouped activation transform of PQ-SAM: groups of channels, their shift and scale, one grid.

Outlier hierarchical clustering (OHC) of sampled token rows X [R, C]:
1. Q1, Q3 of the whole tensor; X is clamped to [Q1 - lambda IQR, Q3 + lambda IQR]. The clamp shapes
   groups, shifts and scales only: grids come from unclamped values.
2. Of the channels that are left, those whose own alpha and 1 - alpha quantiles lie between the same
   quantiles of all that is left form a group; where there is none, the channel whose median is
   nearest to the centre does. v_g, s_g are the mean and the standard deviation of the group.
The last of `max_groups` groups takes all channels that are left.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from codtdq.methods.ranges import quantile_rows
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, grid_of
from codtdq.numerics.straight_through import fake_shifted_ste
from codtdq.schemes.base import InputScheme
from codtdq.schemes.stored import BITS, Stored, one_of, rules

SAMPLE_VALUES = 1 << 16  # of the rows that groups and grids are fitted to
MIN_SCALE = 1e-2  # of s_g, relative to the whole tensor: a dead channel must not divide by zero
CLIPS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # of each end of the range, tried in all pairs


class GroupedTransform(InputScheme):
    """x_tilde = (x - v_g) / s_g on one grid for the tensor, and x_hat = s_g * x_tilde_hat + v_g.

    The transform is undone before the operator pads, so that padded zeros stay zeros.
    group: uint8 [C]; shift (v), scale (s): [G]; step, zero: [1].
    """

    kind = "grouped-transform"
    accepts = rules(bits=BITS)
    group: Tensor
    shift: Tensor
    scale: Tensor
    step: Tensor
    zero: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.code_bits = bits
        self.register_buffer("group", torch.zeros(0, dtype=torch.uint8))
        for name in ("shift", "scale", "step", "zero"):
            self.register_buffer(name, torch.zeros(0))

    @classmethod
    def fit(
        cls, rows: Tensor, bits: int, *, outlier: float, quantile: float, max_groups: int
    ) -> GroupedTransform:
        """Groups by OHC and the grid of least squared error of x_hat over rows [R, C]."""
        rows = rows[: max(SAMPLE_VALUES // rows.shape[1], 2)]
        self = cls(bits)
        clamped = clamp_outliers(rows, outlier)
        groups = cluster_channels(clamped, quantile, max_groups)
        self.group = torch.zeros(rows.shape[1], dtype=torch.uint8)
        for index, members in enumerate(groups):
            self.group[members] = index
        parts = [clamped[:, members] for members in groups]
        floor = float(clamped.std(correction=0)) * MIN_SCALE + EPS
        self.shift = torch.stack([part.mean() for part in parts])
        self.scale = torch.stack([part.std(correction=0) for part in parts]).clamp(min=floor)
        self._search_grid(rows)
        return self

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A group of each channel, a shift and a scale of each group, one grid."""
        groups = self.shift.shape[0] if 1 <= self.shift.numel() <= 256 else 1
        return {
            "group": one_of((channels,), low=0, high=groups - 1),
            "shift": one_of((groups,)),
            "scale": one_of((groups,), low=0),
            "step": one_of((1,), low=0),
            "zero": one_of((1,)),
        }

    def transform(self, tokens: Tensor) -> Tensor:
        """(x - v_g) / s_g."""
        group = self.group.long()
        return (tokens - self.shift[group]) / self.scale[group]

    def restore(self, transformed: Tensor) -> Tensor:
        """s_g * x_tilde + v_g."""
        group = self.group.long()
        return transformed * self.scale[group] + self.shift[group]

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C]; differentiable in shift, scale and step while these are learned."""
        fake = fake_shifted_ste if self.step.requires_grad else fake_shifted
        limits = code_limits(self.code_bits, False)
        return self.restore(fake(self.transform(tokens), self.step, self.zero, *limits))

    def bits(self, channels: int) -> float:
        """Groups and grids travel with the model, not with the activation."""
        return float(self.code_bits)

    def settings(self) -> dict[str, Any]:
        """Width."""
        return {"bits": self.code_bits}

    def _search_grid(self, rows: Tensor) -> None:
        transformed = self.transform(rows)
        low, high = transformed.amin().reshape(1), transformed.amax().reshape(1)
        best = float("inf")
        for below, above in itertools.product(CLIPS, CLIPS):
            step, zero = grid_of(low * below, high * above, self.code_bits, False)
            hat = fake_shifted(transformed, step, zero, *code_limits(self.code_bits, False))
            error = float((self.restore(hat) - rows).square().mean())
            if error < best:
                best, self.step, self.zero = error, step, zero


def clamp_outliers(rows: Tensor, outlier: float) -> Tensor:
    """Stage 1 of OHC: rows within `outlier` interquartile ranges of the quartiles."""
    flat = rows.reshape(1, -1)
    first, third = float(quantile_rows(flat, 0.25)), float(quantile_rows(flat, 0.75))
    reach = outlier * (third - first)
    if reach == 0:  # half of the values are one value (a sparse input): nothing to measure by
        return rows
    return rows.clamp(first - reach, third + reach)


def cluster_channels(rows: Tensor, quantile: float, max_groups: int) -> list[Tensor]:
    """Stage 2 of OHC: channel indices of each group, inner groups first. rows: [R, C]."""
    columns = rows.T.contiguous()
    low, high = (quantile_rows(columns, q)[:, 0] for q in (quantile, 1 - quantile))
    middle = quantile_rows(columns, 0.5)[:, 0]
    left = torch.arange(len(columns))
    groups: list[Tensor] = []
    while len(left):
        if len(groups) == max_groups - 1:
            groups.append(left)
            break
        flat = columns[left].reshape(1, -1)
        bounds = [float(quantile_rows(flat, q)) for q in (quantile, 1 - quantile)]
        inside = (low[left] >= bounds[0]) & (high[left] <= bounds[1])
        if not bool(inside.any()):
            centre = sum(bounds) / 2
            inside[(middle[left] - centre).abs().argmin()] = True
        groups.append(left[inside])
        left = left[~inside]
    return groups
