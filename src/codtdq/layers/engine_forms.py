"""What a method's own schemes tell a backend about themselves, so that it can execute them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from codtdq.native import library
from codtdq.native.weighed import GroupGrid, RowTransform, values


class EngineInput(NamedTuple):
    """An input scheme that the native engine has: groups on weighed grids, maybe transformed."""

    grid: GroupGrid
    transform: RowTransform | None = None


class EngineWeight(NamedTuple):
    """A weight as the native engine takes it."""

    codes: Tensor  # int8 [O, taps, I] in -8..7
    scale: Tensor  # float32 [O, taps * ceil(I / group)], in units of
    factor: Tensor  # float32 [O, 1]
    group: int


def engine_values(grid: GroupGrid, tokens: Tensor) -> Tensor | None:
    """x_hat of tokens [B, N, C] by the engine; None where only torch can tell."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return None
    if tokens.device.type != "cpu" or tokens.dtype != torch.float32 or not tokens.numel():
        return None
    if tokens.requires_grad and torch.is_grad_enabled():
        return None
    if library.load() is None or grid.obstacle() is not None:
        return None
    return values(tokens, grid)


__all__ = ["EngineInput", "EngineWeight", "GroupGrid", "RowTransform", "engine_values"]
