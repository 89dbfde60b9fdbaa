"""Do the Triton kernels give the metrics of the simulated path? In Triton's interpreter, no GPU.

    TRITON_INTERPRET=1 python benchmarks/triton_metrics.py [--images 400] [--out runs/triton]

Both paths run freely: a code that rounds the other way at a tie moves many behind it, as it does
when the input changes in its last bits. So two correct executions differ image by image, and only
means over images can agree. Three executions of every image are scored: simulated, Triton, and, as
a yardstick, simulated on an input with noise of 1e-6.

Images are taken in turn from the four test sets of camosynth. OUT/batches.jsonl gets one line per
finished batch and model; a second start goes on from there. Afterwards OUT/images.jsonl has S and
MAE of every image, OUT/summary.json and summary.md every metric's difference with its paired
standard error; `--summary` makes these of the batches that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quick_interpreter import quick_interpreter

import codtdq
from codtdq.data import open_dataset
from codtdq.data.sample import Sample
from codtdq.data.transforms import to_input
from codtdq.engine import use_backend
from codtdq.evaluation.batching import batch_size_for
from codtdq.evaluation.masks import to_mask
from codtdq.evaluation.predict import info_of, mask_logits
from codtdq.evaluation.provenance import provenance
from codtdq.metrics import MetricSuite

SPLITS = ("test-easy", "test-texture", "test-small", "test-spikes")
NOISE = 1e-6  # of the yardstick's input, whose values have a deviation of about 1
SIMULATED, TRITON, NOISY = "simulated", "triton", "simulated, noise 1e-6"
TOLERANCE = 2e-3  # of a metric
READING = (
    "By `TRITON_INTERPRET=1 python benchmarks/triton_metrics.py`: W4A4, both paths running freely "
    "over camosynth's four test sets, in Triton's interpreter. Means of the paired differences "
    "with their standard errors. The last column is the simulated path against itself on inputs "
    "with noise of 1e-6: what the network makes of differences that mean nothing. E_max and F_max "
    "are of the mean curve, no means over images: they have no such error."
)


class Pair:
    """A quantized model twice: simulated, and on the Triton kernels."""

    def __init__(self, name: str, preset: str) -> None:
        self.name, self.preset = name, preset
        self.simulated, self.triton = (
            codtdq.quantize(codtdq.create_model(name), preset, backend="reference")
            for _ in range(2)
        )
        self.info = info_of(self.simulated)
        record = use_backend(self.triton, "triton")
        if record.fallbacks:
            raise SystemExit(f"{name} falls back to the simulation: {record.fallbacks}")

    def measure(self, samples: list[Sample], first: int) -> dict[str, MetricSuite]:
        """Scores of one batch, by execution. first: number of the first image, the noise's seed."""
        return {
            SIMULATED: self._scores(self.simulated, samples),
            TRITON: self._scores(self.triton, samples),
            NOISY: self.with_noise(samples, seed=first),
        }

    def with_noise(self, samples: list[Sample], seed: int) -> MetricSuite:
        """Scores of the simulation on inputs that differ in their last bits."""
        return self._scores(self.simulated, samples, seed)

    def _scores(
        self, model: torch.nn.Module, samples: list[Sample], seed: int | None = None
    ) -> MetricSuite:
        info = self.info
        x = torch.stack([to_input(s.image, info.input_size, info.mean, info.std) for s in samples])
        if seed is not None:
            x += NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        suite = MetricSuite()
        for sample, logits in zip(samples, mask_logits(model, info, x)):
            assert sample.mask is not None
            mask = to_mask(logits, sample.mask.shape[:2], info.postprocess)
            suite.update(mask, sample.mask, name=sample.name)
        return suite


def images(start: int, count: int) -> list[Sample]:
    """Images by number, in turn from the four sets."""
    sets = [open_dataset(f"camosynth/{split}") for split in SPLITS]
    return [sets[i % len(sets)][i // len(sets)] for i in range(start, start + count)]


def batches(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """(model, first image, count), the models in turn so that all of them grow."""
    for start in range(0, args.images, args.batch):
        for name in args.models.split(","):
            yield name, start, min(args.batch, args.images - start)


def finished(file: Path) -> list[dict[str, Any]]:
    """The lines of earlier runs; one that was cut off is not counted."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        write(file, whole)
    return [json.loads(line) for line in whole.splitlines()]


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["model"], line["preset"], line["first"], line["count"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cfrn-small,escnet-small")
    parser.add_argument("--preset", default="cod-tdq-guarded")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/triton"))
    parser.add_argument("--summary", action="store_true", help="only sum up what is there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "batches.jsonl"
    done = {key_of(line) for line in finished(file)}
    pairs: dict[str, Pair] = {}
    for name, first, count in () if args.summary else batches(args):
        if (name, args.preset, first, count) in done:
            continue
        if name not in pairs:
            pairs[name] = Pair(name, args.preset)
        pair = pairs[name]
        batch_size_for(pair.simulated, count)  # an error where images would share a range
        begin = time.process_time()
        with quick_interpreter():
            suites = pair.measure(images(first, count), first)
        line = {
            "model": name,
            "preset": args.preset,
            "first": first,
            "count": count,
            "cpu_seconds": round(time.process_time() - begin, 1),
            "provenance": provenance(pair.simulated),
            "suites": {arm: suite.state_dict() for arm, suite in suites.items()},
        }
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    lines = [line for line in finished(file) if line["preset"] == args.preset]
    found = [line["model"] for line in lines]
    results = [summary([one for one in lines if one["model"] == name]) for name in _unique(found)]
    write(args.out / "summary.json", json.dumps(results, indent=1) + "\n")
    write(args.out / "summary.md", markdown(results))
    write(args.out / "images.jsonl", "".join(compact(lines)))


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """All metrics of one model, and by how much the executions differ."""
    suites = {arm: _joined(line["suites"][arm] for line in lines) for arm in lines[0]["suites"]}
    metrics = {arm: suite.compute() for arm, suite in suites.items()}
    count = int(metrics[SIMULATED].pop("count"))
    return {
        "model": lines[0]["model"],
        "preset": lines[0]["preset"],
        "images": count,
        "metrics": {
            arm: {m: values[m] for m in metrics[SIMULATED]} for arm, values in metrics.items()
        },
        "differences": {
            arm: {
                metric: _difference(suites, metrics, arm, metric) for metric in metrics[SIMULATED]
            }
            for arm in (TRITON, NOISY)
        },
        "tolerance": TOLERANCE,
        "cpu_seconds": round(sum(line["cpu_seconds"] for line in lines)),
        "provenance": lines[0]["provenance"],
        "triton": version("triton"),
    }


def _difference(
    suites: dict[str, MetricSuite], metrics: dict[str, Any], arm: str, metric: str
) -> dict[str, float]:
    """mean: of the data set's metric; error: paired, over images; deviation: of one image.

    E_max and F_max are of the mean curve, no means over images: they have no such error.
    """
    found = {"mean": metrics[arm][metric] - metrics[SIMULATED][metric]}
    if metric.endswith("_max"):
        return found
    rows = zip(suites[arm].per_image(), suites[SIMULATED].per_image(), strict=True)
    apart = np.array([one[metric] - other[metric] for one, other in rows])
    deviation = float(apart.std(ddof=1))
    return {**found, "error": deviation / len(apart) ** 0.5, "deviation": deviation}


def _joined(states: Iterator[dict[str, Any]]) -> MetricSuite:
    suite = MetricSuite()
    for state in states:
        suite.merge(MetricSuite.from_state(state))
    return suite


def markdown(results: list[dict[str, Any]]) -> str:
    """Differences of all metrics, a table per model."""
    lines = ["# Metrics of the Triton kernels against the simulated path", "", READING]
    for one in results:
        triton, noisy = (one["differences"][arm] for arm in (TRITON, NOISY))
        within = [metric for metric, d in triton.items() if abs(d["mean"]) <= TOLERANCE]
        known = [d for d in triton.values() if "error" in d]
        sure = [d for d in known if abs(d["mean"]) + 2 * d["error"] <= TOLERANCE]
        lines += [
            "",
            f"## {one['model']}, {one['preset']}, {one['images']} images",
            "",
            f"Within {TOLERANCE:g}: {len(within)} of {len(triton)} metrics; with two standard "
            f"errors on top: {len(sure)} of {len(known)}. {one['cpu_seconds']} s of one core.",
            "",
            "| metric | simulated | Triton - simulated | noise of 1e-6 - simulated |",
            "|---|---|---|---|",
        ]
        for metric, value in one["metrics"][SIMULATED].items():
            cells = [_cell(d[metric]) for d in (triton, noisy)]
            lines.append(f"| {metric} | {value:.4f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, float]) -> str:
    error = f" ± {found['error']:.5f}" if "error" in found else ""
    return f"{found['mean']:+.5f}{error}"


def compact(lines: list[dict[str, Any]]) -> Iterator[str]:
    """S and MAE of every image, by execution."""
    for line in sorted(lines, key=key_of):
        arms = {arm: state["per_image"] for arm, state in line["suites"].items()}
        for place, row in enumerate(arms[SIMULATED]):
            number = line["first"] + place
            scores = {
                arm: {metric: round(rows[place][metric], 5) for metric in ("S", "MAE")}
                for arm, rows in arms.items()
            }
            split = SPLITS[number % len(SPLITS)]
            head = {"model": line["model"], "split": split, "image": row["name"]}
            yield json.dumps({**head, **scores}) + "\n"


def _unique(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
