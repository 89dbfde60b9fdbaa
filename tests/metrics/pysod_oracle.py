"""PySODMetrics as the reference, and a seeded stream of pairs to compare on."""

from __future__ import annotations

import warnings

import numpy as np
import py_sod_metrics

SIZES = ((1, 1), (1, 2), (2, 1), (1, 37), (29, 1), (2, 3), (5, 4), (7, 7), (13, 31), (33, 18))


class FiniteSmeasure(py_sod_metrics.Smeasure):
    """The reference S-measure, except that a quarter without pixels adds nothing (not NaN)."""

    def ssim(self, pred, gt):
        return super().ssim(pred, gt) if pred.size else 0.0


class Oracle:
    """The five reference measures fed together."""

    def __init__(self):
        self.s, self.finite_s = py_sod_metrics.Smeasure(), FiniteSmeasure()
        self.wf, self.e = py_sod_metrics.WeightedFmeasure(), py_sod_metrics.Emeasure()
        self.f = py_sod_metrics.FmeasureV2(
            {"f": py_sod_metrics.FmeasureHandler(with_dynamic=True, with_adaptive=True, beta=0.3)}
        )
        self.mae = py_sod_metrics.MAE()

    def step(self, pred, gt):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # means of empty quarters
            for metric in (self.s, self.finite_s, self.wf, self.e, self.f, self.mae):
                metric.step(pred, gt)
        return self

    def results(self):
        e, f = self.e.get_results()["em"], self.f.get_results()["f"]
        return {
            "S": float(self.finite_s.get_results()["sm"]),
            "wF": float(self.wf.get_results()["wfm"]),
            "E_adp": float(e["adp"]),
            "E_mean": float(e["curve"].mean()),
            "E_max": float(e["curve"].max()),
            "F_adp": float(f["adaptive"]),
            "F_mean": float(f["dynamic"].mean()),
            "F_max": float(f["dynamic"].max()),
            "MAE": float(self.mae.get_results()["mae"]),
        }

    def plain_s(self):
        """The unmodified S-measure; NaN when a quarter has no pixels."""
        return float(self.s.get_results()["sm"])

    def curves(self):
        return self.e.get_results()["em"]["curve"], self.f.get_results()["f"]["dynamic"]


def make_gt(kind, shape, rng):
    height, width = shape
    gt = np.zeros(shape, np.uint8)
    if kind == "noise":
        gt[rng.random(shape) < rng.random()] = 255
    elif kind == "grey":
        gt = rng.integers(0, 256, shape).astype(np.uint8)
    elif kind == "pixel":
        gt[rng.integers(height), rng.integers(width)] = 255
    elif kind == "full":
        gt[:] = 255
    elif kind == "box":
        top, left = rng.integers(height), rng.integers(width)
        gt[top : top + 1 + height // 2, left : left + 1 + width // 3] = 255
    elif kind == "blob":
        rows, columns = np.mgrid[:height, :width]
        ring = ((rows - height / 2) / height) ** 2 + ((columns - width / 3) / width) ** 2
        gt[ring < rng.uniform(0.02, 0.15)] = 255
    else:
        assert kind == "empty"
    return gt


def make_pred(kind, gt, rng):
    shape = gt.shape
    if kind == "zero":
        return np.zeros(shape, np.uint8)
    if kind == "white":
        return np.full(shape, 255, np.uint8)
    if kind == "flat":
        return np.full(shape, rng.integers(1, 255), np.uint8)
    if kind == "binary":
        return np.where(rng.random(shape) < rng.random(), 255, 0).astype(np.uint8)
    if kind == "perfect":
        return gt.copy()
    if kind == "inverse":
        return 255 - gt
    if kind == "few":
        return rng.choice(rng.integers(0, 256, 3), size=shape).astype(np.uint8)
    if kind == "noise":
        return rng.integers(0, 256, shape).astype(np.uint8)
    assert kind == "soft"
    return np.clip(0.6 * gt + rng.normal(45, 25, shape), 0, 255).astype(np.uint8)


GT_KINDS = ("empty", "full", "pixel", "noise", "grey", "box", "blob")
PRED_KINDS = ("zero", "white", "flat", "binary", "perfect", "inverse", "few", "noise", "soft")
