"""Norms that stay in float32 (`fp32_ln`, `fp32_gn`): their arithmetic and their parameters,
whatever the dtype of their input and whatever the rest of the model is cast to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class _Fp32Norm(nn.Module):
    """Keeps the affine parameters in float32 when the model is cast; they still move device."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)

    @classmethod
    def adopt(cls, norm: nn.Module) -> None:
        """Turn a norm into its float32 form, in place: names and hooks stay."""
        norm.float()
        norm.__class__ = cls


class Fp32LayerNorm(_Fp32Norm, nn.LayerNorm):
    """LayerNorm in float32, its result in the dtype of the input."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        normed = F.layer_norm(
            input.float(), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return normed.to(input.dtype)


class Fp32GroupNorm(_Fp32Norm, nn.GroupNorm):
    """GroupNorm in float32, its result in the dtype of the input."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, ...] -> [B, C, ...]."""
        normed = F.group_norm(input.float(), self.num_groups, self.weight, self.bias, self.eps)
        return normed.to(input.dtype)
