"""Paired differences of a method to others over the images of a results file, seeds averaged.

    python benchmarks/paired_seeds.py results/plus/results.jsonl --method cod-tdq-plus

Rows of other methods count where they have the same data sets with the same images; intervals are
95 % bootstrap over images (seed 0).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

DRAWS = 4000


def interval(difference: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the mean over redrawn images."""
    random = np.random.default_rng(0)
    count = len(difference)
    means = [difference[random.integers(0, count, count)].mean() for _ in range(DRAWS)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """One line per model, stress and rival."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--method", default="cod-tdq-plus")
    parser.add_argument("--metric", default="S")
    args = parser.parse_args()
    scores: dict[tuple, dict[tuple, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in map(json.loads, args.file.read_text().splitlines()):
        if row["status"] == "ok":
            case = row["model"], row["stress"] or "none"
            place = row["dataset"], row["count"]
            scores[case][row["method"], place][row["seed"]] = row["per_image"][args.metric]
    for case, found in scores.items():
        places = sorted(place for method, place in found if method == args.method)
        ours = [np.mean(list(found[args.method, place].values()), 0) for place in places]
        for rival in sorted({method for method, _ in found} - {args.method}):
            if not places or not all((rival, place) in found for place in places):
                continue
            theirs = [np.mean(list(found[rival, place].values()), 0) for place in places]
            difference = np.concatenate(ours) - np.concatenate(theirs)
            low, high = interval(difference)
            sys.stdout.write(
                f"{case[0]:16}{case[1]:10}{rival:18}{len(difference):6} images  "
                f"{difference.mean():+.4f} ({low:+.4f} to {high:+.4f})\n"
            )


if __name__ == "__main__":
    main()
