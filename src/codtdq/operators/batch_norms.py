"""Fold batch norms into the operators before them, as their inference form is usually deployed.

With y = W x + b and the norm's running mean m, variance v, gamma, beta (all [O]):

    f = gamma / sqrt(v + eps)      W'[o] = f_o W[o]      b' = (b - m) f + beta

The norm stays in its place as the identity (mean 0, variance 1 - eps, gamma 1, beta 0): names and
entries of the state dict are those of the architecture, so a checkpoint restores it like any other
norm, and an engine that fuses norms fuses a factor of 1. It still counts as a norm: a method that
rescales norms may give it an affine part again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from codtdq.operators.rescale import tied
from codtdq.planning.plan import Site
from codtdq.planning.trace import ModelGraph

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def fold_batch_norms(model: nn.Module, graph: ModelGraph, sites: Iterable[Site]) -> list[str]:
    """Fold, in place, every batch norm that alone reads the output of a quantized operator.

    model: in eval mode, its weights float. Returns the names of the folded norms, in running order.
    """
    folded = []
    for site in sites:
        follower = graph.followers.get(site.name)
        if follower is None or not site.quantized:
            continue
        operator, norm = model.get_submodule(site.name), model.get_submodule(follower)
        # channels are axis 1 for the norm: those of a Linear only where its output is [B, C]
        in_place = graph.ranks[site.name] == site.float_weight.ndim
        if _foldable(norm) and in_place and not tied(model, [operator, norm]):
            _fold(operator, norm)
            folded.append(follower)
    return folded


def _foldable(norm: nn.Module) -> bool:
    return isinstance(norm, BATCH_NORMS) and norm.running_mean is not None


@torch.no_grad()
def _fold(operator: nn.Module, norm: nn.Module) -> None:
    assert isinstance(norm, BATCH_NORMS)
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None
    weight = operator._parameters["weight"]
    assert weight is not None
    # in double: one rounding to the weight's own dtype
    factor = (variance.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        factor = factor * norm.weight.double()
    offset = -mean.double() * factor
    if norm.bias is not None:
        offset = offset + norm.bias.double()
    bias = operator._parameters.get("bias")
    if bias is not None:
        offset = offset + bias.double() * factor
    weight.data = (weight.double() * factor.view(-1, *[1] * (weight.ndim - 1))).to(weight.dtype)
    operator.bias = nn.Parameter(offset.to(weight.dtype), requires_grad=False)
    mean.zero_()
    variance.fill_(1 - norm.eps)
    if norm.weight is not None:
        norm.weight.data = torch.ones_like(norm.weight)
    if norm.bias is not None:
        norm.bias.data = torch.zeros_like(norm.bias)
