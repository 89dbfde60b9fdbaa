"""Properties that hold for every pair of maps."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codtdq.metrics import measure

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=14)
THRESHOLD_SCORES = ("E_adp", "E_mean", "E_max", "F_adp", "F_mean", "F_max", "MAE")


def maps(shape, high=255):
    return hnp.arrays(np.uint8, shape, elements=st.integers(0, high))


@st.composite
def pairs(draw, high=255):
    shape = draw(SHAPES)
    return draw(maps(shape, high)), draw(maps(shape))


@st.composite
def objects(draw):
    """A mask of 0 and 255 with both values."""
    shape = draw(SHAPES.filter(lambda s: s[0] * s[1] > 1))
    mask = draw(hnp.arrays(bool, shape).filter(lambda m: m.any() and not m.all()))
    return np.where(mask, 255, 0).astype(np.uint8)


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_scores_lie_in_their_range(pair):
    scores = measure(*pair).as_dict()
    for key in ("S", "wF", "F_adp", "F_mean", "F_max", "MAE"):
        assert -1e-12 <= scores[key] <= 1 + 1e-9, key
    for letter in "EF":
        assert 0 <= scores[f"{letter}_mean"] <= scores[f"{letter}_max"] * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(objects())
def test_perfect_prediction_scores_one(gt):
    scores = measure(gt, gt).as_dict()
    for key in ("S", "wF", "F_adp", "F_max"):
        assert scores[key] == pytest.approx(1, abs=1e-6), key
    assert scores["E_adp"] == pytest.approx(gt.size / (gt.size - 1), abs=1e-6)
    assert scores["MAE"] == 0


@settings(max_examples=150, deadline=None)
@given(objects())
def test_inverted_prediction_finds_nothing(gt):
    gt = np.pad(gt, 4)  # at the image border the Gaussian mean sees zeros and forgives
    scores = measure(255 - gt, gt).as_dict()
    assert scores["MAE"] == 1
    assert scores["F_adp"] == 0
    assert scores["wF"] == pytest.approx(0, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(pairs())
def test_threshold_scores_ignore_where_pixels_are(pair):
    pred, gt = pair
    before = measure(pred, gt).as_dict()
    for change in (np.flipud, np.fliplr, np.transpose):
        after = measure(np.ascontiguousarray(change(pred)), np.ascontiguousarray(change(gt)))
        for key in THRESHOLD_SCORES:
            if key.endswith("_adp"):  # a tie at the threshold depends on the order of summation
                continue
            assert after.as_dict()[key] == pytest.approx(before[key], rel=1e-12, abs=1e-12), key


@settings(max_examples=100, deadline=None)
@given(pairs(high=180), st.integers(1, 75))
def test_brightness_of_a_varying_prediction_has_no_effect(pair, offset):
    pred, gt = pair
    if pred.min() == pred.max():
        return
    before, after = measure(pred, gt), measure(pred + np.uint8(offset), gt)
    assert after.mae == pytest.approx(before.mae, abs=1e-12)
    assert after.wf == pytest.approx(before.wf, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(pairs())
def test_measure_leaves_its_inputs_alone(pair):
    copies = [array.copy() for array in pair]
    first, second = measure(*pair).as_dict(), measure(*pair).as_dict()
    assert first == second
    for array, copy in zip(pair, copies):
        np.testing.assert_array_equal(array, copy)
