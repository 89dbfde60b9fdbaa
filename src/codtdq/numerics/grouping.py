"""DSTG: cut an activation into the groups that get a range of their own (Eq. direct_sum).

Every mode ends in the same form, groups [..., n] whose last axis shares one radius, so that the
projection and the grid are written once:

- per_tensor:       [1, N*C]        one range for the whole tensor
- per_channel:      [C, N]          one range for each channel, over all tokens
- per_token_group:  [..., K, g]     a range for each token and g consecutive channels
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.numerics.spec import ActivationSpec


@dataclass(frozen=True)
class Groups:
    """Groups of one activation, and which of their elements are real.

    values: [..., n] float32.
    valid:  [K, n] bool, False on padding; None where nothing was padded.
    """

    values: Tensor
    valid: Tensor | None

    def count(self) -> Tensor | int:
        """Real elements in each group: an int, or [K] where the last group is short."""
        return self.values.shape[-1] if self.valid is None else self.valid.sum(-1)

    def magnitude(self, fill: float = 0.0) -> Tensor:
        """|x| with padding replaced by `fill`."""
        magnitude = self.values.abs()
        if self.valid is None or fill == 0.0:
            return magnitude
        return magnitude.masked_fill(~self.valid, fill)


def split(x: Tensor, spec: ActivationSpec) -> Groups:
    """Cut x [..., C] (channels last) into groups, in float32.

    The literal reading counts padding as real elements; the default one marks it invalid.
    """
    x = x.float()
    if spec.mode == "per_tensor":
        return Groups(x.reshape(1, -1), None)
    channels = x.shape[-1]
    if spec.mode == "per_channel":
        return Groups(x.reshape(-1, channels).t(), None)
    size = spec.group_size
    short = -channels % size
    if short:
        x = F.pad(x, (0, short))
    values = x.unflatten(-1, ((channels + short) // size, size))  # [..., C_pad] -> [..., K, g]
    if not short or spec.literal:
        return Groups(values, None)
    positions = torch.arange(channels + short, device=x.device).reshape(-1, size)
    return Groups(values, positions < channels)


def merge(values: Tensor, shape: torch.Size, spec: ActivationSpec) -> Tensor:
    """Undo `split` for a tensor shaped like the groups: padding removed, shape [..., C]."""
    if spec.mode == "per_tensor":
        return values.reshape(shape)
    if spec.mode == "per_channel":
        return values.t().reshape(shape)
    flat = values.flatten(-2)
    return flat[..., : shape[-1]]


def group_count(channels: int, size: int) -> int:
    """K of Eq. direct_sum: groups that cover the channels, the last one possibly short."""
    return -(-channels // size)
