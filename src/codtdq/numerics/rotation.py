"""A Hadamard rotation of blocks of 32 channels, which spreads a spike over its block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 32


def rotate_blocks(x: Tensor) -> Tensor:
    """Orthonormal 32-point Hadamard transform of each whole block of the last dimension."""
    whole = x.shape[-1] // BLOCK * BLOCK
    if not whole:
        return x
    y = x[..., :whole].unflatten(-1, (-1, BLOCK))
    size = 1
    while size < BLOCK:  # butterflies: 5 additions per value
        pairs = y.unflatten(-1, (-1, 2, size))
        first, second = pairs.unbind(-2)
        y = torch.stack((first + second, first - second), -2).flatten(-3)
        size *= 2
    y = (y / math.sqrt(BLOCK)).flatten(-2)
    return y if whole == x.shape[-1] else torch.cat((y, x[..., whole:]), -1)
