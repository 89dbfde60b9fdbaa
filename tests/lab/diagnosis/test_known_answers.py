"""Every diagnostic of synthetic activations with planted outliers has a closed form."""

import math

import numpy as np
import pytest
import torch

from codtdq.lab.diagnosis.groups import Observation, disparity
from codtdq.lab.diagnosis.statistics import LayerStatistics
from codtdq.numerics import ActivationSpec, quantize

FACTS = {
    "name": "x",
    "role": "linear",
    "kind": "linear",
    "order": 0,
    "channels": 4,
    "grid": None,
    "mode": "",
    "bits": 4.0,
    "group": None,
}
SPIKE = 112.0  # 16 * 7: a per-tensor step of exactly 16


def planted() -> torch.Tensor:
    """Eight tokens (1, -1, 1, -1); the first of all elements is a spike."""
    x = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(8, 1)
    x[0, 0] = SPIKE
    return x


def labels() -> torch.Tensor:
    """Token 0 in between, 1 and 2 on the boundary, the rest elsewhere."""
    return torch.tensor([-1, 1, 1, 0, 0, 0, 0, 0], dtype=torch.int8)


def record_of(x, spec, marks=None, times=1):
    statistics = LayerStatistics()
    for _ in range(times):
        result = quantize(x, spec)
        statistics.add(Observation(result.tokens, result.tokens_hat, result, marks))
    return statistics.record(**FACTS)


def plain(mode, **changes):
    return ActivationSpec(mode=mode, group_size=4, tau=None, zero_ratio=None, **changes)


@pytest.mark.parametrize("times", [1, 3])
def test_one_range_is_ruined_by_one_spike(times):
    record = record_of(planted(), plain("per_tensor"), labels(), times)
    mean = (SPIKE - 1) / 32  # 15 ones and 16 minus ones remain
    spread = math.sqrt((SPIKE**2 + 31) / 32 - mean**2)
    assert record.calls == times
    assert record.radius.mean == SPIKE and record.step.median == 16.0
    assert record.sigma.mean == pytest.approx(spread, rel=1e-6)
    assert record.eta.maximum == pytest.approx(16 / spread, rel=1e-6)
    assert record.c_g == pytest.approx(SPIKE / spread, rel=1e-6)
    assert record.rho0.mean == pytest.approx(31 / 32)
    assert record.clip.maximum == 0.0
    assert record.disparity == SPIKE and record.disparity_defined == 1.0
    assert record.sqnr_db == pytest.approx(10 * math.log10((SPIKE**2 + 31) / 31), rel=1e-6)
    assert record.cosine == pytest.approx(SPIKE / math.sqrt(SPIKE**2 + 31), rel=1e-6)
    assert record.active == {"base": 1.0, "c1": 0.0, "c2": 0.0, "guarded": 0.0}
    for region, tokens in ((record.boundary, 2), (record.elsewhere, 5)):
        assert region.tokens == tokens * times
        assert (region.rho0, region.zeroed, region.magnitude) == (1.0, 1.0, 1.0)
        assert region.step == 16.0 and region.eta == 16.0
        assert region.eta_set == pytest.approx(16.0)  # the deviation carries its 1e-12
        assert region.sqnr_db == 0.0  # all of the signal is noise


def test_token_groups_keep_the_evidence_of_all_other_tokens():
    record = record_of(planted(), plain("per_token_group"), labels())
    assert record.radius.maximum == SPIKE and record.radius.median == pytest.approx(1.0)
    assert record.rho0.mean == pytest.approx(0.75 / 8)  # three of the spike's own token
    assert record.rho0.median == 0.0 and record.rho0.maximum == 0.75
    assert record.step.mean == pytest.approx((16 + 7 / 7) / 8)
    assert record.c_g == pytest.approx(record_of(planted(), plain("per_tensor")).c_g)
    assert record.sqnr_db == pytest.approx(10 * math.log10((SPIKE**2 + 31) / 3), rel=1e-6)
    assert record.boundary.rho0 == record.boundary.zeroed == 0.0
    assert record.boundary.eta == pytest.approx(1 / 7)
    assert record.boundary.step == pytest.approx(1 / 7)
    assert record.boundary.sqnr_db > 120
    assert sum(record.group_eta.counts) == 8 and sum(record.group_rho0.counts) == 8


def test_per_channel_ranges():
    record = record_of(planted(), plain("per_channel"), labels())
    assert record.radius.maximum == SPIKE and record.radius.median == pytest.approx(1.0)
    assert record.rho0.maximum == pytest.approx(7 / 8)  # the spike's channel loses the others
    assert record.rho0.mean == pytest.approx(7 / 8 / 4)
    assert record.boundary.zeroed == 0.25  # one channel of four
    assert record.boundary.step == pytest.approx((16 + 3 / 7) / 4)


def test_the_bound_that_set_the_radius_and_what_it_clips():
    # sixteen channels: 16, and fifteen that alternate: sigma = 4.11..., C1's radius 14.4 < 16
    row = torch.tensor([16.0] + [1.0, -1.0] * 7 + [1.0])
    sigma = row.double().std(correction=0).item()
    spec = ActivationSpec(mode="per_token_group", group_size=16, tau=0.5, zero_ratio=None)
    record = record_of(row.repeat(3, 1), spec)
    assert record.active["c1"] == 1.0 and record.active["base"] == 0.0
    assert record.radius.mean == pytest.approx(3.5 * sigma, rel=1e-6)
    assert record.eta.mean == pytest.approx(0.5, rel=1e-6)
    assert record.clip.mean == pytest.approx(1 / 16)
    # C2: half of the elements are ones, the radius must keep them out of the zero bin
    row = torch.tensor([100.0, -100.0, 1.0, -1.0])
    spec = ActivationSpec(mode="per_token_group", group_size=4, tau=None, zero_ratio=0.25)
    record = record_of(row.repeat(3, 1), spec)
    assert record.active["c2"] == 1.0 and record.rho0.maximum == 0.0
    assert record.radius.mean == pytest.approx(14.0, rel=1e-5) and record.clip.mean == 0.5


def test_bounds_that_no_radius_meets_are_reported():
    constant = torch.full((5, 4), 3.0)
    spec = ActivationSpec(mode="per_token_group", group_size=4, tau=1.0, zero_ratio=0.2)
    record = record_of(constant, spec)
    assert record.infeasible == {"c1": 1.0, "c2": 0.0}
    assert math.isnan(record.eta.mean)  # a constant group has no deviation to compare with


def test_exact_zeros_are_no_lost_evidence():
    x = planted()
    x[3:, :2] = 0.0
    record = record_of(x, plain("per_tensor"), labels())
    assert record.elsewhere.zeroed == 1.0 and record.elsewhere.rho0 == 1.0
    statistics = LayerStatistics()
    statistics.add(Observation(x, x, None, labels()))
    exact = statistics.record(**FACTS)
    assert exact.rho0.maximum == 0.0 and exact.elsewhere.zeroed == 0.0
    assert math.isinf(exact.sqnr_db) and exact.cosine == pytest.approx(1.0)
    assert math.isnan(exact.step.mean) and math.isnan(exact.boundary.eta)


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("size", [16, 64])  # 40 channels: two groups and a short one, or one
@pytest.mark.parametrize("mode", ["per_tensor", "per_channel", "per_token_group"])
def test_the_numbers_are_those_that_the_quantizer_returns(mode, size, literal):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(57, 40, generator=generator) * torch.rand(57, 1, generator=generator) * 3
    x[::5, 3:9] = 0.0
    spec = ActivationSpec(mode=mode, group_size=size, percentile=0.9, tau=0.8, literal=literal)
    result = quantize(x, spec)
    record = record_of(x, spec)
    for name, theirs in (
        ("radius", result.radius),
        ("step", result.step),
        ("sigma", result.sigma),
        ("eta", result.eta),
        ("rho0", result.zero_mass),
        ("clip", result.clip_rate),
    ):
        ours, theirs = getattr(record, name), theirs.double().flatten()
        assert ours.mean == pytest.approx(theirs.mean().item(), rel=1e-5, abs=1e-7), name
        assert ours.maximum == pytest.approx(theirs.max().item(), rel=1e-5, abs=1e-7), name
        exact = float(theirs.sort().values[math.ceil(0.5 * len(theirs)) - 1])
        assert ours.median == pytest.approx(exact, rel=1 / 50, abs=1e-7), name
    assert record.sqnr_db == pytest.approx(result.sqnr_db, abs=1e-4)
    assert record.active["c1"] == pytest.approx((result.active == 1).double().mean().item())
    both = torch.nn.functional.cosine_similarity(
        x.double().flatten(), result.x_hat.double().flatten(), dim=0
    )
    assert record.cosine == pytest.approx(both.item(), abs=1e-6)


def test_range_disparity():
    x = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -60.0], [2.0, 2.0, 2.0]])
    assert disparity(x, 60.0) == 30.0  # medians of tokens 2, 5, 2
    assert disparity(x[:2], 60.0) == pytest.approx(60 / 3.5)  # even counts take the mean
    assert math.isnan(disparity(torch.zeros(4, 4), 0.0))
    many = torch.ones(1000, 6)
    many[17] = 40.0
    assert disparity(many, 40.0) == 40.0


def test_token_statistics_of_groups():
    # two groups per token with steps 16 and 1/7, so the token's mean step is between them
    x = planted().reshape(4, 8)
    record = record_of(x, plain("per_token_group"))
    assert sum(record.token_rho0.counts) == 4 and sum(record.group_rho0.counts) == 8
    edges = np.array(record.token_rho0.edges)
    filled = np.flatnonzero(record.token_rho0.counts)
    assert edges[filled].tolist() == [0.0, 0.36]  # 3 of 8 elements of one token: 0.375
    peaks = np.flatnonzero(record.token_range.counts)
    assert len(peaks) == 2 and record.token_range.edges[peaks[0]] == 1.0


@pytest.mark.parametrize("channels", [3, 16, 40])  # less than a group, one, two and a short one
def test_the_deviation_survives_an_offset_that_hides_it(channels):
    """Sums of squares of 1000 +- 0.01 hold no digit of 0.01; the quantizer's deviation does."""
    x = 1000 + 0.01 * torch.randn(50, channels, generator=torch.Generator().manual_seed(0))
    x[::7] = 1000.0  # constant tokens, without an eta
    x[1::7] = torch.randn(7, channels, generator=torch.Generator().manual_seed(1))
    x[2::7] = 0.0
    spec = ActivationSpec(group_size=16)
    result, record = quantize(x, spec), record_of(x, spec)
    varied = result.sigma > 1e-9
    assert record.sigma.mean == pytest.approx(result.sigma.double().mean().item(), rel=1e-6)
    assert record.eta.mean == pytest.approx(result.eta[varied].double().mean().item(), rel=1e-5)
    assert sum(record.group_eta.counts) == int(varied.sum())


def test_labels_of_another_image_on_the_same_grid_are_not_mixed_up():
    statistics, x = LayerStatistics(), planted()
    result = quantize(x, plain("per_tensor"))
    for boundary in range(1, 8):  # more grids than are kept, each gone before the next
        for _ in range(3):
            marks = torch.full((8,), -1, dtype=torch.int8)
            marks[:boundary] = 1
            statistics.add(Observation(x, result.x_hat, result, marks))
    record = statistics.record(**FACTS)
    assert record.boundary.tokens == 3 * sum(range(1, 8)) and record.elsewhere is None
