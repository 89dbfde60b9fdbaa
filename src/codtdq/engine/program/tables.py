"""Tables that attention adds to its scores, in fewer numbers: one of heads and one of windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOST_LEVELS = 16
_LOOKS = 64  # numbers of a table


def split(table: Tensor, known: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor] | None:
    """A table [windows, heads, N, N] as heads [1, heads, N, N] + windows [windows, 1, N, N].

    Shifted windows add their mask to the position bias of every head: 64 windows of CFRN's first
    stage hold 21 MB, their parts 5. The first window is taken as one without a mask, the others
    may have a few levels. None where the sum would not be the table to the bit.

    known: tables of windows that others were split into: of one stage, all have the same.
    """
    windows, heads = table.shape[:2]
    if table.ndim != 4 or windows < 2 or heads < 2 or table.dtype is not torch.float32:
        return None
    bias = table[:1]
    own_bias = bias.clone()  # not a view, which would keep the whole table
    for one in known:
        # window by window: all at once, their sum would be as large as the table
        if one.shape == (windows, 1, *table.shape[2:]) and all(
            torch.equal(bias[0] + mask, own) for mask, own in zip(one, table)
        ):
            return own_bias, one
    parts: list[Tensor] = []
    seen: list[int] = []  # a window of each kind: most are like another one
    for window, own in enumerate(table):
        like = next((other for other in seen if torch.equal(own, table[other])), None)
        if like is not None:
            parts.append(parts[like])
            continue
        mask = _levels(own.double() - bias[0].double())
        if mask is None or not torch.equal(bias[0] + mask, own):
            return None
        seen.append(window)
        parts.append(mask)
    return own_bias, torch.stack(parts).unsqueeze(1)


def _levels(differences: Tensor) -> Tensor | None:
    """The few numbers [N, N] near which the differences of all heads, [heads, N, N], lie."""
    near, which = differences.mean(0).mul(1e3).round().unique(return_inverse=True)
    if len(near) > MOST_LEVELS:
        return None
    found = torch.empty_like(differences[0], dtype=torch.float32)
    for level in range(len(near)):
        # every difference is off by a rounding: their mean is not
        found[which == level] = differences[:, which == level].mean().float()
    return found


def glance(table: Tensor) -> tuple[object, ...]:
    """What most tables differ in, and equal ones do not: their shape, and some numbers."""
    line = table.detach().flatten()
    return tuple(table.shape), table.dtype, *line[:: max(1, line.numel() // _LOOKS)].tolist()
