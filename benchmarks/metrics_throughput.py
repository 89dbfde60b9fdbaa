# ruff: noqa: E402
"""Throughput of codtdq.metrics against PySODMetrics on 768 x 1024 maps, one thread.

Both sides compute the five measures (S, weighted F, E, F, MAE) of the same pairs in turn, so a
change in machine load hits both alike. Run: python benchmarks/metrics_throughput.py
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # must be set before numpy loads

import argparse
import platform
import statistics
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import py_sod_metrics
from numpy.typing import NDArray
from scipy import ndimage

from codtdq.metrics import MetricSuite
from codtdq.metrics.counts import count
from codtdq.metrics.distance import squared_distance
from codtdq.metrics.pair import prepare
from codtdq.metrics.structure import s_measure
from codtdq.metrics.threshold import threshold_scores
from codtdq.metrics.weighted import REACH, weighted_f

Map = NDArray[np.uint8]


def make_pair(height: int, width: int, radius: float, seed: int) -> tuple[Map, Map]:
    """Return a soft noisy prediction with many grey levels and a smooth irregular object."""
    rng = np.random.default_rng(seed)
    wobble = ndimage.gaussian_filter(rng.standard_normal((height, width)), 40, mode="wrap")
    wobble /= wobble.std()
    rows, columns = np.mgrid[:height, :width]
    centre_y, centre_x = rng.uniform(0.4, 0.6, 2) * (height, width)
    ring = ((rows - centre_y) / radius) ** 2 + ((columns - centre_x) / (1.3 * radius)) ** 2
    field = 1 - ring + 0.3 * wobble
    gt = np.where(field > 0, 255, 0).astype(np.uint8)
    blur = ndimage.gaussian_filter(rng.standard_normal((height, width)), 8) * 10
    soft = 255 / (1 + np.exp(-np.clip(6 * field + blur, -30, 30)))
    pred = np.clip(soft + rng.normal(0, 4, soft.shape), 0, 255).astype(np.uint8)
    return pred, gt


def run_oracle(pred: Map, gt: Map) -> dict[str, float]:
    """Return the five measures of PySODMetrics."""
    f_handler = py_sod_metrics.FmeasureHandler(with_dynamic=True, with_adaptive=True, beta=0.3)
    s, wf = py_sod_metrics.Smeasure(), py_sod_metrics.WeightedFmeasure()
    e, mae = py_sod_metrics.Emeasure(), py_sod_metrics.MAE()
    f = py_sod_metrics.FmeasureV2({"f": f_handler})
    for metric in (s, wf, e, f, mae):
        metric.step(pred, gt)
    return {
        "S": float(s.get_results()["sm"]),
        "wF": float(wf.get_results()["wfm"]),
        "E_mean": float(e.get_results()["em"]["curve"].mean()),
        "F_mean": float(f.get_results()["f"]["dynamic"].mean()),
        "MAE": float(mae.get_results()["mae"]),
    }


def run_ours(pred: Map, gt: Map) -> dict[str, float]:
    """Return all measures of codtdq."""
    suite = MetricSuite()
    suite.update(pred, gt)
    return suite.compute()


def timed(function, *arguments) -> tuple[float, float]:
    """Return wall and processor milliseconds of one call."""
    wall, processor = time.perf_counter(), time.thread_time()
    function(*arguments)
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.thread_time() - processor)


def stage_times(pred: Map, gt: Map, repeats: int) -> dict[str, float]:
    """Return the median processor milliseconds of each stage of codtdq."""
    pair = prepare(pred, gt)
    counts = count(pair)
    stages = {
        "validate, mask": lambda: prepare(pred, gt),
        "joint histogram": lambda: count(pair),
        "F and E": lambda: threshold_scores(pair, counts),
        "S": lambda: s_measure(pair, counts),
        "weighted F": lambda: weighted_f(pair, counts),
        "  of it distances (full map)": lambda: squared_distance(pair.mask, REACH),
    }
    return {
        name: statistics.median(timed(stage)[1] for _ in range(repeats))
        for name, stage in stages.items()
    }


def processor_name() -> str:
    """Return the processor model."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Print time per image of both sides, their ratio and the largest difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--size", type=int, nargs=2, default=(768, 1024), metavar=("H", "W"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    height, width = options.size
    print(f"machine: {processor_name()}, {os.cpu_count()} cores, {platform.platform()}")
    packages = ("numpy", "scipy", "pysodmetrics", "codtdq")
    print(f"python {platform.python_version()},", ", ".join(f"{p} {version(p)}" for p in packages))
    if hasattr(os, "getloadavg"):
        print(f"load average {os.getloadavg()[0]:.2f}; one thread; median of {options.repeats}")
    ratios = []
    for label, share in (("small", 0.12), ("medium", 0.2), ("large", 0.3)):
        pred, gt = make_pair(height, width, share * height, seed=3)
        reference, ours = run_oracle(pred, gt), run_ours(pred, gt)
        difference = max(abs(ours[key] - reference[key]) for key in reference)
        times = [
            (*timed(run_oracle, pred, gt), *timed(run_ours, pred, gt))
            for _ in range(options.repeats)
        ]
        wall, cpu, our_wall, our_cpu = (statistics.median(column) for column in zip(*times))
        ratios.append(statistics.median(row[0] / row[2] for row in times))
        print(
            f"{label:6} object {100 * (gt > 128).mean():4.1f} %, {np.unique(pred).size} levels: "
            f"PySODMetrics {wall:6.1f} ms (cpu {cpu:6.1f}), codtdq {our_wall:5.1f} ms "
            f"(cpu {our_cpu:5.1f}), ratio {ratios[-1]:5.2f} (cpu {cpu / our_cpu:5.2f}), "
            f"max difference {difference:.1e}"
        )
        if label == "medium":
            stages = stage_times(pred, gt, options.repeats)
            print("  stages:", "; ".join(f"{k.strip()} {v:.2f} ms" for k, v in stages.items()))
    print(
        f"ratio at {height}x{width}: median {statistics.median(ratios):.2f}, min {min(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
