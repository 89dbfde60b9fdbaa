"""How much of an evaluation is not the model: `python benchmarks/harness_overhead.py`.

Runs the evaluation of `codtdq bench accuracy` at one thread and prints, for both small models,
the share of wall time outside forward passes. Images come from the cache of the benchmark, as for
every method of a run but the first. The second pair of columns pins everything to one core, where
loading and scoring cannot hide behind the model.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch

from codtdq.lab.bench.cells import Cell, Group
from codtdq.lab.bench.group import run_group
from codtdq.lab.bench.settings import RunSettings

MODELS = ("cfrn-small", "escnet-small")
METHODS = ("fp32", "cod-tdq")
DATASET = "camosynth/test-easy"


def measure(model: str, method: str, images: int, settings: RunSettings) -> dict:
    """The row of one cell."""
    cell = Cell(model, method, DATASET, limit=images)
    with tempfile.TemporaryDirectory() as name:
        (row,) = run_group(Group((cell,)), settings, {DATASET: images}, Path(name))
    if row["error"]:
        raise SystemExit(row["error"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=250)
    images = parser.parse_args().images
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    print(f"{images} images of {DATASET}, one thread, {len(cores)} cores")
    print("model         method   ms/image  share   one core: ms/image  share")
    with tempfile.TemporaryDirectory() as out:
        settings = RunSettings(out=out)
        settings.cache_dir.mkdir()
        measure(MODELS[0], "fp32", images, settings)  # fills the cache
        for model in MODELS:
            for method in METHODS:
                cells = []
                for allowed in (cores, {min(cores)}):
                    os.sched_setaffinity(0, allowed)
                    row = measure(model, method, images, settings)
                    cells += [1000 * row["wall_seconds"] / images, 100 * row["harness_share"]]
                os.sched_setaffinity(0, cores)
                print(
                    f"{model:13} {method:8} {cells[0]:8.1f} {cells[1]:5.1f} %"
                    f" {cells[2]:19.1f} {cells[3]:5.1f} %"
                )


if __name__ == "__main__":
    main()
