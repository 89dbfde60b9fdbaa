"""An operator's input as tokens [B, N, C], and an operator run on tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def linear_tokens(x: Tensor) -> Tensor:
    """A Linear's input [B, ..., C] as tokens [B, N, C]; [C] and [B, C] have one position."""
    if x.ndim == 1:
        return x.reshape(1, 1, -1)
    if x.ndim == 2:
        return x.unsqueeze(1)
    return x.flatten(1, -2)


def conv_tokens(x: Tensor) -> Tensor:
    """A batched Conv input [B, C, *positions] as tokens [B, N, C], contiguous."""
    return x.flatten(2).transpose(1, 2).contiguous()


def input_tokens(module: nn.Module, x: Tensor) -> Tensor:
    """Any operator's input as tokens [B, N, C]."""
    if isinstance(module, nn.Linear):
        return linear_tokens(x)
    dimensions = 4 if isinstance(module, nn.Conv2d) else 3
    return conv_tokens(x if x.ndim == dimensions else x.unsqueeze(0))


def run_operator(module: nn.Module, tokens: Tensor, weight: Tensor, like: Tensor) -> Tensor:
    """What `module` gives for tokens [B, N, C] and another weight, its own bias included.

    like: the input that the tokens came from, for its shape. Conv geometry is the module's own, so
    grouped and depthwise convolutions are right by construction.
    """
    bias = module._parameters.get("bias")
    if isinstance(module, nn.Linear):
        return F.linear(tokens.view(like.shape), weight, bias)
    assert isinstance(module, nn.Conv2d | nn.Conv1d)
    maps = tokens.transpose(1, 2).unflatten(2, like.shape[2:])
    return module._conv_forward(maps, weight, bias)
