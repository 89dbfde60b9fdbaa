"""Difficult values for carriers, and one check for every set and number of threads."""

import itertools
import math

import torch
from engine_cases import SETS, instruction_set, same, torch_threads
from hypothesis import HealthCheck, settings

from codtdq.engine.cpu.operators import quant_spec

bounded = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SPECIAL = [0.0, 1e-40, 1e-12, 1e30, 3e38, math.nan, math.inf, -math.inf]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(low, high, *shape, seed=0):
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed))


def difficult(rows, channels, seed=0):
    """Ordinary rows of many sizes among rows of every other kind."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, generator=generator)
    x = x * torch.exp(2 * torch.randn(rows, 1, generator=generator))
    x = x * torch.exp(torch.randn(1, channels, generator=generator))
    kinds = [
        lambda row: row.zero_(),
        lambda row: row.fill_(1.5),
        lambda row: row[::3].zero_(),
        lambda row: row.relu_(),
        lambda row: row.mul_(1e-9),
        lambda row: row[:1].fill_(1000.0),
        lambda row: row.copy_((row * 4).round() / 4),
        lambda row: row.mul_(1e-40),
        lambda row: row.add_(1000.0),
        lambda row: row[:1].fill_(math.nan),
        lambda row: row[-1:].fill_(-math.inf),
        lambda row: row[-1:].fill_(3e38),
    ]
    for index, change in enumerate(kinds):
        if 2 * index < rows:
            change(x[2 * index])
    return x


def engine_spec(spec):
    return quant_spec(
        spec.bits,
        spec.group_size,
        spec.literal,
        spec.projection == "guarded",
        spec.percentile,
        spec.tau,
        spec.zero_ratio,
    )


def everywhere(check):
    for name, threads in itertools.product(SETS, (1, 2)):
        with instruction_set(name), torch_threads(threads):
            check(f"{name}, {threads} threads")


def check_carried(found, expected, where):
    channels = expected.values.shape[1]
    assert same(found.unit, expected.unit), where
    assert torch.equal(found.multiplier, expected.multiplier), where
    assert torch.equal(found.data[:, :channels], expected.values), where
    assert not found.data[:, channels:].any(), where
    assert found.unit_rows == expected.unit_rows, where
