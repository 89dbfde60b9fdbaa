"""Helpers of the tests of captured runs."""

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from codtdq.engine.program.program import Program


class Applied(nn.Module):
    """A function as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def tensors(outputs):
    return [one for one in tree_flatten(outputs)[0] if isinstance(one, torch.Tensor)]


def distance(found, wanted):
    """Largest difference, as a share of the largest value."""
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
        for a, b in zip(tensors(found), tensors(wanted), strict=True)
    )


def compare(model, *inputs, **settings):
    """The distance of a program to its model; shapes and structure agree."""
    program = Program(model, inputs, **settings)
    with torch.no_grad():
        wanted = model(*inputs)
    found = program(*inputs)
    assert tree_flatten(found)[1] == tree_flatten(wanted)[1]
    assert [one.shape for one in tensors(found)] == [one.shape for one in tensors(wanted)]
    return distance(found, wanted)
