"""Convolutions whose matrix [K, K] has no room: the taps of the kernel are fitted side by side.

A 3x3 convolution of 5760 channels has K = 51,840 columns, and one H of 10 GB. Its taps have one of
[C, C] each, which is what correlates most: channels of one pixel. What a tap should give is what
its float weight gives on the same inputs; the bias then meets the wanted mean of all of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from codtdq.methods.plus.layer import FittedLayer, LayerSettings, round_target
from codtdq.methods.plus.moments import DAMPING, Moments
from codtdq.methods.plus.rounding import Rounded, nearest_codes, search_scales
from codtdq.schemes.weight_groups import GroupedWeight, ScaleFormat, group_index, weight_rows

WIDEST = 9216  # columns of a weight that is fitted whole: a 3x3 convolution of 1024 channels


def is_wide(shape: tuple[int, ...], groups: int) -> bool:
    """Whether a weight [O, C, *taps] is fitted by its taps."""
    return groups == 1 and math.prod(shape[1:]) > WIDEST and math.prod(shape[2:]) > 1


class TapMoments:
    """Second moments per tap, and the mean of the wanted outputs."""

    def __init__(self, weight: Tensor) -> None:
        """Weight: [O, C, *taps], float."""
        self.shape = weight.shape
        outputs, channels = weight.shape[:2]
        rows = weight_rows(weight).float()  # tap by tap, channels innermost
        self.blocks = rows.reshape(outputs, -1, channels).transpose(0, 1)  # [T, O, C]
        self._moments: Moments | None = None
        self._wanted = torch.zeros(outputs)

    def add(self, rows: Tensor, wanted: Tensor) -> None:
        """Take in rows of quantized inputs [1, R, K] and of wanted outputs [1, R, O]."""
        parts = rows[0].unflatten(1, (len(self.blocks), -1)).transpose(0, 1)  # [T, R, C]
        own = parts @ self.blocks.mT
        if self._moments is None:
            self._moments = Moments(parts.mean(1), own.mean(1))
        self._moments.add(parts, own)
        self._wanted += wanted[0].sum(0)

    def fit(self, bias: Tensor | None, settings: LayerSettings) -> FittedLayer:
        """Codes, scales and a bias; the moments are used up."""
        assert self._moments is not None
        taps, outputs, channels = self.blocks.shape
        count = self._moments.rows
        free = settings.correct_bias
        problem = self._moments.problem(None if free else torch.zeros(taps, outputs))
        self._moments.clear()
        index = group_index(torch.Size((outputs, channels)), settings.group)
        hessian = problem.damped(DAMPING)
        if settings.group:
            rounded, scale_format = round_target(self.blocks, hessian, index, settings)
        else:  # one scale for all taps of an output: they cannot be fitted apart
            rounded, scale_format = self._nearest(hessian, settings)
        store = GroupedWeight.from_codes(
            rounded.codes.transpose(0, 1).flatten(1),
            rounded.scales.transpose(0, 1).flatten(1) if settings.group else rounded.scales[0],
            scale_format,
            self.shape,
            settings.bits,
            settings.group,
        )
        if free:
            given = (rounded.values @ problem.mean_x.unsqueeze(-1)).sum(0).squeeze(-1)
            bias = self._wanted / max(count, 1) - given
        error = problem.error(rounded.values)
        return FittedLayer(store, bias, None, problem.error(self.blocks), error)

    def _nearest(self, hessian: Tensor, settings: LayerSettings) -> tuple[Rounded, ScaleFormat]:
        """Scales [T, O, 1], the same for every tap, and codes [T, O, C] rounded to nearest."""
        taps, outputs, channels = self.blocks.shape
        columns = taps * channels
        row = torch.zeros(columns, dtype=torch.long)
        scales, scale_format = search_scales(
            self.blocks.transpose(0, 1).reshape(1, outputs, columns),
            hessian.diagonal(dim1=1, dim2=2).reshape(1, columns),
            row,
            settings.bits,
            signed=settings.search,
        )
        shared = scales.expand(taps, outputs, 1)
        return nearest_codes(self.blocks, shared, row[:channels], settings.bits), scale_format
