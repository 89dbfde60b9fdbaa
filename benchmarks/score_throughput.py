"""Images per second of `codtdq score` against PySODMetrics, on generated maps of 1024 x 768.

Writes maps and masks as PNG files, then scores the same files in one run: with the command
`codtdq score` (start-up included), with PySODMetrics in one process as its users call it, and
with PySODMetrics split over as many processes as `codtdq score` has. All sides read the files and
compute S, weighted F, E, F and MAE; their means are compared.

Run alone on the machine: python benchmarks/score_throughput.py --out results/score/throughput.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import py_sod_metrics
from metrics_throughput import make_pair, processor_name
from PIL import Image

DISTINCT = 24  # pairs that are drawn; the others are these, moved sideways
SHARES = (0.08, 0.12, 0.2, 0.3)  # of the height: radius of the object


def write_maps(folder: Path, count: int, height: int, width: int) -> None:
    """Write `count` pairs as maps/<name>.png and GT/<name>.png."""
    for part in ("maps", "GT"):
        (folder / part).mkdir()
    pairs = [
        make_pair(height, width, SHARES[seed % len(SHARES)] * height, seed)
        for seed in range(min(count, DISTINCT))
    ]
    for index in range(count):
        shift = 7 * (index // len(pairs))
        for part, pixels in zip(("maps", "GT"), pairs[index % len(pairs)]):
            moved = np.roll(pixels, shift, axis=1)
            Image.fromarray(moved).save(folder / part / f"{index:05d}.png")


def reference(paths: list[tuple[str, str]]) -> list[tuple[float, ...]]:
    """Return S, weighted F, mean E, mean F and MAE of every pair, by PySODMetrics."""
    cv2.setNumThreads(1)
    warnings.filterwarnings("ignore")
    handler = py_sod_metrics.FmeasureHandler(with_dynamic=True, with_adaptive=True, beta=0.3)
    s, wf, mae = py_sod_metrics.Smeasure(), py_sod_metrics.WeightedFmeasure(), py_sod_metrics.MAE()
    e, f = py_sod_metrics.Emeasure(), py_sod_metrics.FmeasureV2({"f": handler})
    for map_path, mask_path in paths:
        pred = cv2.imread(map_path, cv2.IMREAD_GRAYSCALE)
        gt = cv2.imread(mask_path, cv2.IMREAD_GRAYSCALE)
        for metric in (s, wf, mae, e, f):
            metric.step(pred, gt)
    found = (
        s.get_results()["sm"],
        wf.get_results()["wfm"],
        e.get_results()["em"]["curve"].mean(),
        f.get_results()["f"]["dynamic"].mean(),
        mae.get_results()["mae"],
    )
    return [(len(paths), *map(float, found))]


def run_reference(folder: Path, processes: int) -> tuple[float, dict[str, float]]:
    """Return seconds and means."""
    names = sorted(path.name for path in (folder / "GT").iterdir())
    paths = [(str(folder / "maps" / name), str(folder / "GT" / name)) for name in names]
    start = time.perf_counter()
    if processes == 1:
        parts = reference(paths)
    else:
        shares = [paths[k::processes] for k in range(processes)]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            parts = [row for rows in pool.map(reference, shares) for row in rows]
    seconds = time.perf_counter() - start
    table = np.array(parts)
    means = (table[:, :1] * table[:, 1:]).sum(0) / table[:, 0].sum()
    return seconds, dict(zip(("S", "wF", "E_mean", "F_mean", "MAE"), means.tolist()))


def run_ours(folder: Path, processes: int) -> tuple[float, dict[str, float]]:
    """Return seconds of the whole command, and means."""
    words = ["score", "--pred", str(folder / "maps"), "--gt", str(folder / "GT"), "--json"]
    command = [sys.executable, "-m", "codtdq", *words, "--workers", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds = time.perf_counter() - start
    return seconds, json.loads(done.stdout)["results"][0]


def _processor_seconds() -> float:
    """Processor time of this process and of those that it waited for; a busy machine adds none."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> None:
    """Print images per second of each side, the ratios and the largest difference of a mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2026)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, nargs=2, default=(768, 1024), metavar=("H", "W"))
    parser.add_argument("--out", metavar="FILE", help="write the numbers as JSON too")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # for the processes
    packages = {name: version(name) for name in ("numpy", "scipy", "pysodmetrics", "codtdq")}
    print(
        f"machine: {processor_name()}, {os.cpu_count()} cores; python {platform.python_version()}"
    )
    load = round(os.getloadavg()[0], 1)  # of others: it was alone if this is near 0
    print(", ".join(f"{name} {found}" for name, found in packages.items()) + f"; load {load}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_maps(folder, options.count, *options.size)
        sides = {
            "codtdq score": (run_ours, options.workers),
            "PySODMetrics": (run_reference, 1),
            "PySODMetrics, split": (run_reference, options.workers),
        }
        rows = []
        for side, (function, processes) in sides.items():
            before = _processor_seconds()
            seconds, means = function(folder, processes)
            row = {"side": side, "processes": processes, "seconds": seconds, "means": means}
            rows.append(row | {"cpu_seconds": _processor_seconds() - before})
            rate = options.count / seconds
            print(f"{side:20} {processes} processes: {seconds:8.1f} s, {rate:7.2f} images/s")
    ours, alone, split = rows
    for other in (alone, split):
        ratio = other["seconds"] / ours["seconds"]
        gap = max(abs(other["means"][key] - ours["means"][key]) for key in other["means"])
        print(f"against {other['side']}: {ratio:.1f} times as fast, largest difference {gap:.1e}")
    if options.out:
        facts = {"count": options.count, "size": list(options.size), "packages": packages}
        facts |= {"machine": processor_name(), "cores": os.cpu_count(), "load": load, "rows": rows}
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
