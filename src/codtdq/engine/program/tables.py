"""Tables that attention adds to its scores, in fewer numbers: one of heads and one of windows."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

MOST_LEVELS = 16


def split(table: Tensor) -> tuple[Tensor, Tensor] | None:
    """A table [windows, heads, N, N] as heads [1, heads, N, N] + windows [windows, 1, N, N].

    Shifted windows add their mask to the position bias of every head: 64 windows of CFRN's first
    stage hold 21 MB, their parts 5. The first window is taken as one without a mask, the others
    may have a few levels. None where the sum would not be the table to the bit.
    """
    windows, heads = table.shape[:2]
    if table.ndim != 4 or windows < 2 or heads < 2 or table.dtype is not torch.float32:
        return None
    bias, parts = table[:1], []
    for own in table:
        mask = _levels(own.double() - bias[0].double())
        if mask is None or not torch.equal(bias[0] + mask, own):
            return None
        parts.append(mask)
    return bias.contiguous(), torch.stack(parts).unsqueeze(1)


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


def digest(table: Tensor) -> tuple[object, ...]:
    """What tells tables apart."""
    whole = table.detach().contiguous()
    return tuple(table.shape), table.dtype, hashlib.sha256(whole.numpy().data).hexdigest()
