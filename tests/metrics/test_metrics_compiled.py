"""The native passes over pixels equal those in numpy, and numpy serves where they cannot run."""

import subprocess
import sys

import numpy as np
import pytest
from pysod_oracle import GT_KINDS, PRED_KINDS, make_gt, make_pred

from codtdq import native
from codtdq.metrics import compiled, counts, distance, missed, weighted
from codtdq.metrics.measure import measure
from codtdq.metrics.pair import prepare

needs_library = pytest.mark.skipif(not native.path().is_file(), reason="the library was not built")


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(compiled, "library", lambda: None)


def pairs(seed, count=40):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        gt = make_gt(rng.choice(GT_KINDS), tuple(rng.integers(1, 300, 2)), rng)
        yield make_pred(rng.choice(PRED_KINDS), gt, rng), gt


@needs_library
def test_the_built_library_has_the_scores():
    assert compiled.library() is not None


@needs_library
@pytest.mark.parametrize("seed", range(4))
def test_all_scores_are_those_of_numpy(seed, monkeypatch):
    found = [measure(pred, gt) for pred, gt in pairs(seed)]
    monkeypatch.setattr(compiled, "library", lambda: None)
    for fast, (pred, gt) in zip(found, pairs(seed), strict=True):
        plain = measure(pred, gt)
        np.testing.assert_array_equal(fast.thresholds.hits, plain.thresholds.hits)
        np.testing.assert_array_equal(fast.thresholds.alarms, plain.thresholds.alarms)
        assert fast.wf == pytest.approx(plain.wf, rel=1e-12, abs=1e-12)
        exact = ("s", "mae", "e_adp", "f_adp")
        assert [getattr(fast, name) for name in exact] == [getattr(plain, name) for name in exact]


@needs_library
@pytest.mark.parametrize("reach", [1, 2, 31, 108, distance.MAX_REACH])
@pytest.mark.parametrize("density", [0.0, 0.0005, 0.02, 0.6])
def test_distances_are_those_of_numpy(reach, density):
    rng = np.random.default_rng([reach, int(1e4 * density)])
    for shape in ((1, 1), (1, 400), (400, 1), (9, 33), (250, 301)):
        mask = rng.random(shape) < density
        mask[rng.integers(shape[0]), rng.integers(shape[1])] = True
        np.testing.assert_array_equal(
            compiled.squared_distance(mask, reach), distance._in_numpy(mask, reach)
        )


@needs_library
def test_counts_and_sums_are_those_of_numpy_on_parts_of_maps():
    rng = np.random.default_rng(5)
    pred = rng.integers(0, 256, (90, 130), np.uint8)
    mask = rng.random((90, 130)) < 0.1
    for rows, columns in ((slice(0, 90), slice(0, 130)), (slice(3, 70), slice(11, 99))):
        part, on = pred[rows, columns], mask[rows, columns]  # rows with gaps between them
        for fast, plain in zip(compiled.profiles(on), counts._profiles(np.ascontiguousarray(on))):
            np.testing.assert_array_equal(fast, plain)
        for split in ((0, 0), (20, 33), part.shape):
            np.testing.assert_array_equal(
                compiled.quarter_histograms(part, on, split),
                counts._quarter_histograms(part, np.ascontiguousarray(on), split),
            )
        squared = distance.squared_distance(on, weighted.REACH)
        assert compiled.discounted(part, on, squared, 0, weighted._DISCOUNT) == pytest.approx(
            weighted._discounted_in_numpy(part, on, squared, 0), rel=1e-13
        )
        deficit, box = (255 - part) * on, (0, part.shape[0], 0, part.shape[1])
        assert compiled.missed_error(deficit, squared, box, missed._WEIGHTS) == pytest.approx(
            missed._in_numpy(deficit, squared, box), rel=1e-13
        )


@needs_library
def test_what_does_not_fit_is_refused_before_anything_is_written():
    library, mask = compiled.library(), np.ones((6, 8), np.bool_)
    squared = np.full((6, 8), -7, np.int16)
    described = compiled._map(mask)
    for reach, count in ((0, 48), (128, 48), (5, 47)):
        assert library.cod_score_distance(described, reach, squared.ctypes.data, count) == 1
    described.count = 47
    assert library.cod_score_distance(described, 5, squared.ctypes.data, 48) == 1
    assert (squared == -7).all()
    quarters = np.full(2048, -7, np.int64)
    whole = compiled._map(mask)
    for row, column, size in ((-1, 0, 2048), (7, 0, 2048), (0, 9, 2048), (3, 3, 2047)):
        code = library.cod_score_histogram(whole, whole, row, column, quarters.ctypes.data, size)
        assert code == 1
    assert (quarters == -7).all()


def test_maps_in_another_memory_order_are_scored_alike():
    rng = np.random.default_rng(2)
    gt = make_gt("blob", (70, 91), rng)
    pred = make_pred("soft", gt, rng)
    turned = (np.asfortranarray(pred), np.asfortranarray(gt))
    mirrored = (pred[:, ::-1].copy()[:, ::-1], gt[:, ::-1].copy()[:, ::-1])
    for other in (turned, mirrored):
        assert measure(*other).as_dict() == pytest.approx(measure(pred, gt).as_dict(), abs=1e-12)


def test_numpy_serves_without_the_library(without_library):
    pred, gt = next(iter(pairs(1, 1)))
    pair = prepare(pred, gt)
    assert not compiled.takes(pair.pred)
    assert np.isfinite(list(measure(pred, gt).as_dict().values())).all()


@pytest.mark.parametrize("environment", [{"CODTDQ_NATIVE": "0"}, {"CODTDQ_NATIVE_LIBRARY": "/x"}])
def test_the_library_can_be_turned_off_or_be_missing(environment):
    code = "from codtdq.metrics import compiled; print(compiled.library())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"
