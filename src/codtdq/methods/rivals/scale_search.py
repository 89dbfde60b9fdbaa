"""Errors of many scale candidates at once, on operators as sampled matrix products.

All errors are sums over sampled rows r and outputs o of importance[r, o] * (y_hat - y)[r, o]^2,
without bias, which no candidate changes.

Scales of different outputs do not meet in these errors, those of groups of columns of one output
do: groups are searched one after the other, the others as they are (`column_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.methods.rivals.receptive_fields import weight_matrix
from codtdq.numerics.affine import code_limits, fake_shifted

CHUNK_VALUES = 1 << 19  # of the largest tensor that a chunk of candidates makes: stays in cache

MakeInputs = Callable[[Tensor], Tensor]  # candidates [P] -> x_hat [groups, P, R, K]


def input_errors(
    make: MakeInputs, candidates: Tensor, weight: Tensor, target: Tensor, importance: Tensor | None
) -> Tensor:
    """[P] error of each candidate of the input quantizer.

    weight: [groups, K, O/groups]. target, importance: [groups, R, O/groups].
    """
    groups, rows, outputs = target.shape
    cost = groups * rows * max(outputs, weight.shape[1])
    errors = []
    for part in chunks(candidates, cost):
        x_hat = make(part)
        y_hat = torch.bmm(x_hat.flatten(1, 2), weight).view(groups, len(part), rows, outputs)
        square = y_hat.sub_(target.unsqueeze(1)).square_()
        if importance is not None:
            square = square.mul_(importance.unsqueeze(1))
        errors.append(square.sum((0, 2, 3)))
    return torch.cat(errors)


def weight_errors(
    x_hat: Tensor,
    weight: Tensor,
    steps: Tensor,
    bits: int,
    target: Tensor,
    importance: Tensor | None,
) -> Tensor:
    """[P, S] error of each candidate of the S symmetric weight scales.

    x_hat: [groups, R, K]; weight [O, K]; steps [P, S] for S equal blocks of output channels.
    Outputs do not mix, so the errors of one scale do not depend on the others: channel by channel
    is the same search as all together.
    """
    groups, rows, outputs = target.shape
    scales, size = steps.shape[1], weight.shape[0] // steps.shape[1]
    limits = code_limits(bits, symmetric=True)
    errors = []
    for part in chunks(steps, max(groups * rows * outputs, weight.numel())):
        spread = part.repeat_interleave(size, 1).unsqueeze(2)  # [P, O, 1]
        w_hat = fake_shifted(weight, spread, torch.zeros(()), *limits)  # [P, O, K]
        # channel-major: the filters of a group stay with its inputs, whatever the candidate
        stacked = w_hat.view(len(part), groups, outputs, -1).permute(1, 3, 0, 2)
        y_hat = torch.bmm(x_hat, stacked.flatten(2)).view(groups, rows, len(part), outputs)
        square = y_hat.sub_(target.unsqueeze(2)).square_()
        if importance is not None:
            square = square.mul_(importance.unsqueeze(2))
        per_output = square.sum(1).transpose(0, 1).flatten(1)  # [P, O]
        errors.append(per_output.view(len(part), scales, size).sum(2))
    return torch.cat(errors)


@dataclass(frozen=True)
class ColumnGroup:
    """Weight columns that share a scale in each output, as an operator of their own."""

    index: int
    columns: slice
    x_hat: Tensor  # [groups, R, g]
    target: Tensor  # [groups, R, O/groups], without what the other columns give


def column_groups(
    x_hat: Tensor, w_hat: Tensor, target: Tensor, group: int | None
) -> Iterator[ColumnGroup]:
    """Every group of columns in turn, with what is left for it to give; None: all in one.

    x_hat: [groups, R, K]; w_hat: [O, K], into which the caller writes its choice for a group before
    it takes the next; target: [groups, R, O/groups].
    """
    if group is None:
        yield ColumnGroup(0, slice(None), x_hat, target)
        return
    groups = x_hat.shape[0]
    miss = target - torch.bmm(x_hat, weight_matrix(w_hat, groups))
    for index, start in enumerate(range(0, w_hat.shape[1], group)):
        columns = slice(start, start + group)
        part = x_hat[..., columns]
        wanted = miss + torch.bmm(part, weight_matrix(w_hat[:, columns], groups))
        yield ColumnGroup(index, columns, part, wanted)
        miss = wanted - torch.bmm(part, weight_matrix(w_hat[:, columns], groups))


def all_tie(errors: Tensor, dim: int) -> Tensor:
    """Where no candidate differs from another: the sampled inputs of a group are all zero."""
    return errors.amin(dim) == errors.amax(dim)


def chunks(candidates: Tensor, cost: int) -> Iterator[Tensor]:
    """Parts of the candidates (first dimension) whose tensors stay below CHUNK_VALUES."""
    yield from candidates.split(max(1, CHUNK_VALUES // max(cost, 1)))
