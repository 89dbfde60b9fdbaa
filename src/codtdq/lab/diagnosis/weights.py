"""Parameter statistics per layer: the columns of the supplement's tables."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from codtdq.errors import ConfigError
from codtdq.lab.diagnosis.record import WeightRecord, WeightSample
from codtdq.numerics.projection import kth_smallest, rank_of
from codtdq.planning.plan import Site
from codtdq.planning.roles import operators

P99 = 0.99
SAMPLE_INPUTS = 256  # of each output channel, evenly spaced
SAMPLED_ROLES = ("attention", "mlp")  # as the supplement's figures: a qkv and an MLP projection


def weight_record(name: str, role: str, weight: Tensor) -> WeightRecord:
    """Mean, standard deviation (unbiased=False), 99th percentile by k-th value, max |w|."""
    values = weight.detach().float().flatten()
    exact = values.double()
    rank = rank_of(P99, values.numel())
    return WeightRecord(
        name=name,
        role=role,
        mean=float(exact.mean()),
        std=float(exact.std(correction=0)),
        p99=float(kth_smallest(values, rank)),
        absmax=float(values.abs().max()),
    )


def weight_records(model: nn.Module) -> list[WeightRecord]:
    """Return one record per Linear and Conv, of the weight that it multiplies by (dequantized)."""
    records = []
    for op in operators(model):
        weight = getattr(op.module, "weight", None)
        if op.kind != "other" and isinstance(weight, torch.Tensor):
            role = getattr(getattr(op.module, "site", None), "role", op.role)
            records.append(weight_record(op.name, role, weight))
    return records


def sampled_weights(model: nn.Module) -> list[str]:
    """The largest weight of each sampled role; of a model without these roles, the largest."""
    found = [op for op in operators(model) if op.kind != "other"]
    parts = [[op for op in found if op.role == role] for role in SAMPLED_ROLES]
    chosen = [part for part in parts if part] or [found]

    def size(op: Site) -> int:
        weight = getattr(op.module, "weight", None)
        return weight.numel() if isinstance(weight, Tensor) else 0

    return [max(part, key=size).name for part in chosen if part]


def chosen_weights(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Names of the operators that match a pattern, in the order of the patterns.

    patterns: whole names with * and ?, such as `*.blocks.10.attn.qkv`; without any,
    `sampled_weights`.
    """
    if not patterns:
        return sampled_weights(model)
    names = [op.name for op in operators(model) if op.kind != "other"]
    found: dict[str, None] = {}
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            end = pattern.rpartition(".")[2].strip("*")
            near = [name for name in names if end and name.endswith(end)] or names
            raise ConfigError(
                f"--layers {pattern}: no Linear or Conv of the model has such a name; there are "
                f"{len(names)}, e.g. {', '.join(near[:3])} (* stands for anything)"
            )
        found |= dict.fromkeys(matched)
    return list(found)


def weight_samples(model: nn.Module, method: str, names: list[str]) -> list[WeightSample]:
    """Return the weights of some operators, bounded in size."""
    samples = []
    for op in operators(model):
        weight = getattr(op.module, "weight", None)
        if op.name in names and isinstance(weight, Tensor):
            rows = weight.detach().float().flatten(1)
            rows = rows[:, :: -(-rows.shape[1] // SAMPLE_INPUTS)]
            samples.append(WeightSample(method, op.name, rows.cpu().numpy().copy()))
    return samples
