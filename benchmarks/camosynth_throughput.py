"""Synthetic scenes per second, one process and two.

python benchmarks/camosynth_throughput.py [--count 400] [--size 192]
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor

from codtdq.data.camosynth import VERSION, generate
from codtdq.environment import environment


def make(job: tuple[int, int]) -> int:
    generate("train", *job)
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--size", type=int, default=192)
    args = parser.parse_args()
    jobs = [(index, args.size) for index in range(args.count)]
    print(f"{VERSION}, {args.size} x {args.size}, {environment()['cpu']}")
    for workers in (1, 2):
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(make, jobs[:20], chunksize=5))  # warm-up
            start = time.perf_counter()
            done = sum(pool.map(make, jobs, chunksize=10))
            print(f"{workers} processes: {done / (time.perf_counter() - start):.0f} images/s")


if __name__ == "__main__":
    main()
