"""Norms that compute in float32 whatever the dtype of their input (`fp32_ln`, `fp32_gn`)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Fp32LayerNorm(nn.LayerNorm):
    """LayerNorm in float32, its result in the dtype of the input."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class Fp32GroupNorm(nn.GroupNorm):
    """GroupNorm in float32, its result in the dtype of the input."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, ...] -> [B, C, ...]."""
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return F.group_norm(x.float(), self.num_groups, weight, bias, self.eps).to(x.dtype)
