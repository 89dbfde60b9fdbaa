"""Where the fused quantizer decides without all digits, it decides as the plain path does."""

import pytest
import torch
from engine_cases import SETS, instruction_set, needs_engine

from codtdq.engine import cpu as native
from codtdq.numerics import ActivationSpec, quantize

pytestmark = needs_engine


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(x, spec):
    with native.disabled():
        expected = quantize(x, spec)
    for name in SETS:
        with instruction_set(name):
            found = quantize(x, spec)
        for field in ("q", "step", "active", "infeasible"):
            assert torch.equal(getattr(found, field), getattr(expected, field)), (name, field)
    return expected


def test_deviation_bound_next_to_the_largest_value():
    # the mean moves the largest magnitude across q_max * tau * sigma, a hair at a time
    spec = ActivationSpec(tau=1.0, zero_ratio=None)
    x = normal(1, 32).expand(4000, 32) + torch.linspace(4.0, 7.0, 4000).unsqueeze(1)
    active = check(x, spec).active
    assert 0 < int((active == 1).sum()) < 4000


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("zero_ratio", [0.05, 0.2, 0.6, 0.95])
def test_any_number_of_zeros_in_a_group(group, zero_ratio):
    x = normal(4 * group, group)
    zeros = torch.arange(4 * group).unsqueeze(1) % (group + 1)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).argsort(1) < zeros] = 0.0
    check(x, ActivationSpec(group_size=group, tau=None, zero_ratio=zero_ratio))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_guarded_candidates_that_come_close(bits):
    # few distinct values: sums of squared errors are equal or nearly so
    x = (normal(3000, 32) * 3).round() / 4
    x[1000:] += normal(2000, 32, seed=1) * 1e-6
    check(x, ActivationSpec(bits=bits, projection="guarded"))


@pytest.mark.parametrize("group", [16, 32, 48])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_next_to_a_tie(group, bits):
    limit = 2 ** (bits - 1) - 1
    scale = torch.rand(2000, 1, generator=torch.Generator().manual_seed(2)) + 0.1
    halves = (normal(2000, group) * limit / 2).round().clamp(-limit, limit - 1) + 0.5
    x = torch.nextafter(halves * scale, normal(2000, group, seed=3) * 100)
    x[:, 0] = limit * scale[:, 0]
    check(x, ActivationSpec(bits=bits, group_size=group, tau=None, zero_ratio=None))


@pytest.mark.parametrize("outlier", [1e4, 1e8, 1e30, 3e38])
def test_outliers_far_beyond_the_radius(outlier):
    x = normal(200, 64)
    x[::3, 5] = outlier
    x[1::3, 40] = -outlier
    check(x, ActivationSpec(percentile=0.9))
    check(x * 1e-9, ActivationSpec(percentile=0.9))
