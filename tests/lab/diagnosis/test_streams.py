"""Streaming gives what a single look gives, in memory that does not grow."""

import math

import numpy as np
import pytest
import torch

from codtdq.lab.diagnosis.groups import Observation
from codtdq.lab.diagnosis.statistics import LayerStatistics
from codtdq.lab.diagnosis.streams import BUFFER, Streams
from codtdq.numerics import ActivationSpec, quantize


def numbers(count, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, 3, count)).astype(np.float32)


def test_pieces_equal_the_whole():
    values = numbers(3 * BUFFER)
    whole, pieces = Streams("a b"), Streams("a b")
    whole.add([values, values[:100]])
    for part in np.array_split(values, 57):
        pieces.add([part, part[:1]])
    for stream in (whole, pieces):
        stream.flush()
    assert np.array_equal(whole.counts[0], pieces.counts[0])
    assert whole.high[0] == pieces.high[0] == values.max()
    assert whole.mean("a") == pytest.approx(pieces.mean("a"), rel=1e-12)
    assert whole.mean("a") == pytest.approx(values.mean(dtype=np.float64), rel=1e-9)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 1.0])
def test_quantiles_lie_within_a_bin(share):
    values = numbers(5001)
    stream = Streams("a")
    stream.add([values])
    exact = np.sort(values)[math.ceil(share * len(values)) - 1]
    assert stream.quantile("a", share) == pytest.approx(exact, rel=1 / 64)


def test_equal_numbers_are_exact_and_missing_ones_not_counted():
    stream = Streams("a b")
    stream.add([np.full(7, 0.3, np.float32), np.array([np.nan, np.inf, 2.0], np.float32)])
    assert stream.quantile("a", 0.5) == np.float32(0.3)
    summary = stream.summary("b")
    assert (summary.mean, summary.median, summary.maximum) == (2.0, 2.0, 2.0)
    assert math.isnan(Streams("a").summary("a").median)


def test_series_of_different_lengths_and_empty_ones():
    stream = Streams("a b c", shares="c")
    for _ in range(2):
        stream.add([numbers(5), np.empty(0, np.float32), np.array([0.5], np.float32)])
    assert stream.mean("a") == pytest.approx(numbers(5).mean(dtype=np.float64))
    assert math.isnan(stream.summary("b").mean) and stream.count.tolist() == [10, 0, 2]
    assert stream.share_histogram("c").counts[25] == 2


def test_histograms_count_everything_once():
    stream = Streams("a")
    stream.add([np.array([1e-6, 0.99, 1.0, 1.24, 1.25, 5000.0], np.float32)])
    found = stream.histogram("a", -6, 6, 4)
    counts = dict(zip(found.edges, found.counts))
    assert sum(found.counts) == 6 and found.edges[0] == 2.0**-6 and found.edges[-1] == 64.0
    assert counts[1.0] == 2 and counts[1.25] == 1 and counts[0.875] == 1
    assert found.counts[0] == 1 and found.counts[-1] == 1  # beyond the ends
    shares = Streams("s")
    shares.add([np.array([0.0, 0.2, 0.2, 1.0], np.float32)])
    found = shares.share_histogram("s")
    assert found.counts[0] == 1 and found.counts[10] == 2 and found.counts[-1] == 1


def observation(seed):
    x = torch.randn(30, 16, generator=torch.Generator().manual_seed(seed))
    result = quantize(x, ActivationSpec(group_size=8))
    marks = torch.tensor([0, 1, -1] * 10, dtype=torch.int8)
    return Observation(x, result.x_hat, result, marks)


def test_statistics_do_not_grow_with_the_number_of_inputs():
    statistics = LayerStatistics()
    statistics.add(observation(0))
    size = statistics.state_bytes()
    most = 0
    for seed in range(200):
        statistics.add(observation(seed))
        most = max(most, statistics.series._numbers)
    assert statistics.state_bytes() == size
    assert most <= BUFFER  # what waits is bounded as well


def test_two_inputs_equal_their_concatenation_where_that_is_defined():
    """Sums over tokens and groups do not care in which input a token came."""
    one, two = observation(1), observation(2)
    apart = LayerStatistics()
    apart.add(one)
    apart.add(two)
    x = torch.cat([one.x, two.x])
    result = quantize(x, one.result.spec)
    together = LayerStatistics()
    together.add(Observation(x, result.x_hat, result, torch.cat([one.labels, two.labels])))
    facts = {
        "name": "",
        "role": "",
        "kind": "",
        "order": 0,
        "channels": 16,
        "grid": None,
        "mode": "",
        "bits": 4.0,
        "group": 8,
    }
    a, b = apart.record(**facts), together.record(**facts)
    for name in ("eta", "rho0", "step", "sigma", "clip"):
        assert vars(getattr(a, name)) == pytest.approx(vars(getattr(b, name)), rel=1e-6)
    assert a.group_eta == b.group_eta and a.token_rho0 == b.token_rho0
    assert vars(a.boundary) == pytest.approx(vars(b.boundary), rel=1e-6)
    assert a.sqnr_db == pytest.approx(b.sqnr_db) and a.cosine == pytest.approx(b.cosine)
