"""Known answers of the paired bootstrap."""

import numpy as np
import pytest

from codtdq.errors import DataError
from codtdq.lab.tables.statistics import bootstrap_means, compare, image_means


def scores(*columns):
    names = "abcdefgh"
    return {
        names[i]: {f"im{k}": float(v) for k, v in enumerate(values)}
        for i, values in enumerate(columns)
    }


def test_constant_difference_has_a_degenerate_interval():
    base = np.random.default_rng(0).random(50)
    found = compare(scores(base, base + 0.25, base), "a")
    assert found["b"].low == pytest.approx(0.25, abs=1e-12)
    assert found["b"].high == pytest.approx(0.25, abs=1e-12)
    assert found["b"].won == 1 and found["b"].excludes_zero and found["b"].images == 50
    assert (found["c"].low, found["c"].high, found["c"].won) == (0, 0, 0.5)
    assert not found["c"].excludes_zero


def test_symmetric_differences_contain_zero():
    found = compare(scores(np.zeros(40), np.tile([1.0, -1.0], 20)), "a")["b"]
    assert found.low < 0 < found.high and found.difference == 0 and found.won == 0.5
    # the standard error of such a mean is 1/sqrt(40), the interval about 1.96 of them
    assert found.high == pytest.approx(1.96 / np.sqrt(40), rel=0.1)


def test_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits, trials = 0, 400
    for trial in range(trials):
        sample = rng.normal(0.1, 1.0, 60)
        found = compare(scores(np.zeros(60), sample), "a", resamples=800, seed=trial)["b"]
        hits += found.low <= 0.1 <= found.high
    assert 0.91 <= hits / trials <= 0.98


def test_pairing_makes_a_small_difference_visible():
    rng = np.random.default_rng(2)
    hard = rng.normal(0, 1, 100)  # difficulty of the images, shared by both methods
    found = compare(scores(hard, hard + 0.02 + rng.normal(0, 0.01, 100)), "a")["b"]
    assert found.excludes_zero and found.high - found.low < 0.01


def test_lower_is_better_counts_wins_the_other_way():
    found = compare(scores(np.zeros(10), np.full(10, -0.1)), "a", higher=False)["b"]
    assert found.won == 1 and found.high < 0


def test_pairs_by_name_not_by_place():
    reference = {"x": 0.1, "y": 0.9}
    shuffled = {"y": 0.95, "x": 0.15}
    found = compare({"r": reference, "m": shuffled}, "r")["m"]
    assert found.low == pytest.approx(0.05) and found.high == pytest.approx(0.05)


def test_other_images_are_an_error():
    with pytest.raises(DataError, match=r"m and r were not scored on the same images.*'z'"):
        compare({"r": {"x": 0.1, "y": 0.2}, "m": {"x": 0.1, "y": 0.2, "z": 0.3}}, "r")


def test_seeded_and_in_chunks_alike(monkeypatch):
    data = np.random.default_rng(3).random((30, 2))
    whole = bootstrap_means(data, 200, seed=5)
    assert np.array_equal(whole, bootstrap_means(data, 200, seed=5))
    assert not np.array_equal(whole, bootstrap_means(data, 200, seed=6))
    monkeypatch.setattr("codtdq.lab.tables.statistics._CHUNK", 30 * 7)
    np.testing.assert_allclose(bootstrap_means(data, 200, seed=5), whole, rtol=1e-12)


def test_bootstrap_is_the_mean_of_drawn_images():
    data = np.arange(5.0)[:, None]
    drawn = np.random.default_rng(0).integers(0, 5, size=(50, 5))
    np.testing.assert_allclose(bootstrap_means(data, 50, 0)[:, 0], drawn.mean(axis=1))


def test_seeds_are_averaged_per_image():
    assert image_means([(["x", "y"], [0.0, 1.0]), (["y", "x"], [0.5, 0.2])]) == {
        "x": 0.1,
        "y": 0.75,
    }
    with pytest.raises(DataError, match="different images"):
        image_means([(["x"], [0.0]), (["y"], [0.5])])
    with pytest.raises(DataError, match="one score per image"):
        image_means([(["x", "x"], [0.0, 0.5])])
