"""Every score equals PySODMetrics 1.6.2 to 1e-6, on edge cases and on random maps."""

import itertools

import numpy as np
import pytest
from pysod_oracle import GT_KINDS, PRED_KINDS, SIZES, Oracle, make_gt, make_pred

from codtdq.metrics import MetricSuite, measure

TOLERANCE = 1e-6


def assert_same(pred, gt):
    oracle = Oracle().step(pred, gt)
    scores = measure(pred, gt)
    found, expected = scores.as_dict(), oracle.results()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        # relative only for maps of one pixel, whose E is of the order 1e15
        assert found[key] == pytest.approx(value, abs=TOLERANCE, rel=1e-9), key
    if np.isfinite(oracle.plain_s()):
        assert found["S"] == pytest.approx(oracle.plain_s(), abs=TOLERANCE)
    e_curve, f_curve = oracle.curves()
    np.testing.assert_allclose(scores.e_curve, e_curve, rtol=1e-9, atol=TOLERANCE)
    np.testing.assert_allclose(scores.f_curve, f_curve, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("gt_kind", GT_KINDS)
@pytest.mark.parametrize("pred_kind", PRED_KINDS)
def test_measure_equals_oracle_on_tiny_and_odd_sizes(gt_kind, pred_kind):
    rng = np.random.default_rng([GT_KINDS.index(gt_kind), PRED_KINDS.index(pred_kind)])
    for shape in SIZES:  # 7 x 9 x 10 = 630 pairs
        gt = make_gt(gt_kind, shape, rng)
        assert_same(make_pred(pred_kind, gt, rng), gt)


@pytest.mark.parametrize("seed", range(8))
def test_measure_equals_oracle_on_random_pairs(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        shape = tuple(rng.integers(1, 60, 2))
        gt = make_gt(rng.choice(GT_KINDS), shape, rng)
        assert_same(make_pred(rng.choice(PRED_KINDS), gt, rng), gt)


@pytest.mark.parametrize("shape", [(150, 431), (331, 140)], ids=["wide", "tall"])
@pytest.mark.parametrize("gt_kind", ["pixel", "box", "blob"])
def test_measure_equals_oracle_when_the_distance_exceeds_the_reach(shape, gt_kind):
    rng = np.random.default_rng(11)
    gt = make_gt(gt_kind, shape, rng)
    assert_same(make_pred("soft", gt, rng), gt)


@pytest.mark.parametrize("distance", [60, 80, 95, 107, 108, 109, 120, 300])
def test_weighted_f_keeps_its_error_bound_when_false_alarms_are_at_the_reach(distance):
    # recall 1 and precision 1/3 is where the score is most sensitive to false alarms
    gt = np.zeros((110, 330), np.uint8)
    gt[5:105, 5] = 255
    pred = gt.copy()
    pred[5:105, 5 + distance] = 255
    expected = Oracle().step(pred, gt).results()["wF"]
    assert measure(pred, gt).wf == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 20])
@pytest.mark.parametrize("repeat", [1, 4, 13, 40, 100])
def test_adaptive_scores_equal_oracle_when_a_level_sits_on_the_threshold(rows, repeat):
    # 2 * (170 + 255) / 5 = 170: the rounding of the mean decides, differently by size
    pred = np.tile(np.array([0, 0, 0, 170, 255], np.uint8), (rows, repeat))
    gt = np.where(np.arange(pred.size).reshape(pred.shape) % 3 == 0, 255, 0).astype(np.uint8)
    assert_same(pred, gt)
    assert_same(np.ascontiguousarray(pred.T).T, np.ascontiguousarray(gt.T).T)


def test_s_measure_equals_oracle_on_flat_quarters_of_every_level():
    for level, column in itertools.product(range(256), (3, 8)):
        gt = np.zeros((9, 13), np.uint8)
        gt[2, column] = 255
        oracle = Oracle()
        pred = np.full((9, 13), level, np.uint8)
        oracle.s.step(pred, gt)
        assert measure(pred, gt).s == pytest.approx(oracle.plain_s(), abs=TOLERANCE), level


def test_s_measure_is_finite_when_a_quarter_is_empty():
    gt = np.zeros((6, 9), np.uint8)
    gt[5, 4] = 255
    oracle = Oracle().step(gt, gt)
    assert np.isnan(oracle.plain_s())
    assert measure(gt, gt).s == pytest.approx(1.0, abs=TOLERANCE)


@pytest.mark.parametrize("view", ["transposed", "reversed", "strided"])
def test_measure_accepts_any_memory_layout(view):
    rng = np.random.default_rng(5)
    gt = make_gt("blob", (44, 62), rng)
    pred = make_pred("soft", gt, rng)
    change = {
        "transposed": lambda a: a.T,
        "reversed": lambda a: a[::-1, ::-1],
        "strided": lambda a: a[::2, ::3],
    }[view]
    assert_same(change(pred), change(gt))


def test_suite_equals_oracle_over_a_data_set():
    rng = np.random.default_rng(2)
    suite, oracle = MetricSuite(), Oracle()
    for index in range(40):
        shape = tuple(rng.integers(8, 70, 2))
        gt = make_gt(GT_KINDS[index % len(GT_KINDS)], shape, rng)
        pred = make_pred(PRED_KINDS[index % len(PRED_KINDS)], gt, rng)
        suite.update(pred, gt)
        oracle.step(pred, gt)
    found, expected = suite.compute(), oracle.results()
    assert found.pop("count") == 40
    assert found == pytest.approx(expected, abs=TOLERANCE)
