"""MetricSuite: averaging, shards, resume, threads and refusals."""

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pysod_oracle import make_gt, make_pred

from codtdq.errors import DataError
from codtdq.metrics import MetricSuite, measure

KEYS = ("S", "wF", "E_adp", "E_mean", "E_max", "F_adp", "F_mean", "F_max", "MAE")


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(8)
    result = []
    for _ in range(12):
        gt = make_gt("blob", tuple(rng.integers(20, 50, 2)), rng)
        result.append((make_pred("soft", gt, rng), gt))
    return result


def gather(pairs):
    suite = MetricSuite()
    for index, (pred, gt) in enumerate(pairs):
        suite.update(pred, gt, name=f"image-{index}")
    return suite


def test_compute_averages_images(pairs):
    result = gather(pairs).compute()
    assert set(result) == {*KEYS, "count"}
    assert result["count"] == len(pairs)
    rows = [measure(*pair) for pair in pairs]
    assert result["S"] == pytest.approx(np.mean([row.s for row in rows]), abs=1e-12)
    assert result["wF"] == pytest.approx(np.mean([row.wf for row in rows]), abs=1e-12)
    curve = np.mean([row.f_curve for row in rows], axis=0)
    assert result["F_mean"] == pytest.approx(curve.mean(), abs=1e-12)


def test_max_is_taken_over_the_averaged_curve():
    gt = np.zeros((8, 8), np.uint8)
    gt[2:6, 2:6] = 255
    low = np.where(gt > 0, 60, 0).astype(np.uint8)  # best at low thresholds
    low[0, 0] = 255
    high = np.where(gt > 0, 255, 200).astype(np.uint8)  # best at high thresholds
    high[7, 7] = 0
    suite = gather([(low, gt), (high, gt)])
    curve = np.mean([measure(low, gt).f_curve, measure(high, gt).f_curve], axis=0)
    assert suite.compute()["F_max"] == pytest.approx(curve.max(), abs=1e-12)
    maxima = [row["F_max"] for row in suite.per_image()]
    assert suite.compute()["F_max"] < np.mean(maxima) - 0.01


def test_per_image_lists_names_and_scores(pairs):
    suite = gather(pairs[:3])
    suite.update(*pairs[3])
    rows = suite.per_image()
    assert [row["name"] for row in rows] == ["image-0", "image-1", "image-2", None]
    for row, pair in zip(rows, pairs):
        assert set(row) == {"name", *KEYS}
        assert {key: row[key] for key in KEYS} == measure(*pair).as_dict()
    rows[0]["S"] = -1.0
    assert suite.per_image()[0]["S"] != -1.0


def test_update_returns_the_scores_of_the_image(pairs):
    scores = MetricSuite().update(*pairs[0])
    assert scores.as_dict() == measure(*pairs[0]).as_dict()
    assert scores.e_curve.shape == scores.f_curve.shape == (256,)


@pytest.mark.parametrize("cuts", [(6,), (1, 2), (4, 8), tuple(range(1, 12))])
def test_merge_gives_the_same_result_for_any_sharding(pairs, cuts):
    whole = gather(pairs).compute()
    merged = MetricSuite()
    for start, stop in zip((0, *cuts), (*cuts, len(pairs))):
        merged.merge(gather(pairs[start:stop]))
    assert merged.compute() == pytest.approx(whole, abs=1e-12)
    assert len(merged) == len(pairs)


def test_merge_leaves_the_other_suite_alone_and_accepts_itself(pairs):
    first, second = gather(pairs[:4]), gather(pairs[4:])
    before = second.state_dict()
    first.merge(second)
    assert second.state_dict() == before
    second.merge(second)
    assert len(second) == 16
    assert second.compute()["S"] == pytest.approx(gather(pairs[4:]).compute()["S"], abs=1e-12)


def test_resume_from_json_is_exact(pairs):
    part = gather(pairs[:5])
    resumed = MetricSuite.from_state(json.loads(json.dumps(part.state_dict(), allow_nan=False)))
    assert resumed.state_dict() == part.state_dict()
    for index, pair in enumerate(pairs[5:], start=5):
        resumed.update(*pair, name=f"image-{index}")
    assert resumed.compute() == gather(pairs).compute()
    assert resumed.per_image() == gather(pairs).per_image()


def test_state_is_independent_of_the_suite(pairs):
    suite = gather(pairs[:2])
    state = suite.state_dict()
    restored = MetricSuite.from_state(state)
    restored.update(*pairs[2])
    assert len(suite) == len(state["per_image"]) == 2


def test_suite_survives_pickling(pairs):
    suite = gather(pairs[:3])
    assert pickle.loads(pickle.dumps(suite)).state_dict() == suite.state_dict()


def test_threads_can_share_a_suite(pairs):
    suite = MetricSuite()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: suite.update(*pair), pairs * 4))
    assert suite.compute() == pytest.approx(gather(pairs * 4).compute(), abs=1e-12)


def test_compute_refuses_an_empty_suite():
    with pytest.raises(DataError, match="no image"):
        MetricSuite().compute()


GOOD = np.zeros((4, 5), np.uint8)


@pytest.mark.parametrize(
    ("pred", "gt", "message"),
    [
        (GOOD.astype(bool), GOOD, "prediction has dtype bool"),
        (GOOD, GOOD.astype(bool), "ground truth has dtype bool"),
        (GOOD.astype(np.float32), GOOD, "prediction has dtype float32"),
        (np.full((4, 5), np.nan), GOOD, "20 NaN values"),
        (GOOD.astype(np.int64), GOOD, "prediction has dtype int64"),
        (GOOD, GOOD[None], r"ground truth has shape \(1, 4, 5\)"),
        (GOOD[0], GOOD[0], r"prediction has shape \(5,\)"),
        (GOOD[:0], GOOD[:0], r"prediction has shape \(0, 5\)"),
        (GOOD, GOOD.T, "4x5 but ground truth is 5x4"),
        (GOOD.tolist(), GOOD, "prediction is a list"),
        (GOOD, None, "ground truth is a NoneType"),
    ],
)
def test_update_refuses_what_is_not_a_pair_of_grey_maps(pred, gt, message):
    suite = MetricSuite()
    with pytest.raises(DataError, match=message) as caught:
        suite.update(pred, gt)
    assert "\n" not in str(caught.value)
    assert len(suite) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99"),
        ({"e_curve_sum": [0.0] * 255}, r"e_curve_sum of shape \(255,\)"),
        ({"f_curve_sum": [float("nan")] * 256}, "f_curve_sum"),
        ({"f_curve_sum": ["x"] * 256}, "non-numeric f_curve_sum"),
        ({"per_image": [{"name": "a", "S": 1.0}]}, "unreadable image row"),
        ({"per_image": [None]}, "unreadable image row"),
    ],
)
def test_from_state_refuses_a_damaged_state(pairs, change, message):
    with pytest.raises(DataError, match=message):
        MetricSuite.from_state({**gather(pairs[:1]).state_dict(), **change})


def test_from_state_refuses_another_type():
    with pytest.raises(DataError, match="list"):
        MetricSuite.from_state([])


def test_import_does_not_load_the_reference_package():
    code = (
        "import sys, codtdq.metrics; bad = {'py_sod_metrics', 'cv2', 'skimage'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
