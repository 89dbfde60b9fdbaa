"""What diagnosing costs: time of a diagnosed forward pass over that of a quantized one.

    python benchmarks/diagnosis_cost.py [--model cfrn-small] [--method cod-tdq] [--images 4]

Both passes run the same model on the same images, in turn; medians of CPU time count, which other
work on the machine disturbs least. The bound is 3; the exit code is 1 beyond it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from codtdq import create_model
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages
from codtdq.lab.diagnosis.boundary import BoundaryProtocol, boundary_band
from codtdq.lab.diagnosis.diagnose import input_of
from codtdq.lab.diagnosis.listening import listening
from codtdq.lab.diagnosis.survey import Labels, Survey
from codtdq.lab.diagnosis.tokens import token_maps
from codtdq.methods import apply_method

BOUND = 3.0


def main() -> int:
    """Measure, print one line of JSON, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cfrn-small")
    parser.add_argument("--method", default="cod-tdq")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    images = open_dataset("camosynth", limit=options.images)
    model = create_model(options.model).eval()
    batches = [input_of(model, images[index]) for index in range(len(images))]
    start = time.process_time()
    maps = token_maps(model, batches[0])
    trace = time.process_time() - start
    calibration = CalibrationImages(model, open_dataset("camosynth/calib", limit=8), count=8)
    quantized = apply_method(model, options.method, calibration)
    survey, protocol = Survey(quantized, options.method, maps), BoundaryProtocol()
    bands = [
        boundary_band(images[i].mask, protocol.r_in, protocol.r_out) for i in range(len(images))
    ]

    def plain() -> None:
        for batch in batches:
            quantized(batch)

    def diagnosed() -> None:
        with listening(quantized, survey.hear):
            for band, batch in zip(bands, batches):
                survey.start("image", Labels(band, maps, protocol))
                quantized(batch)

    times: dict[str, list[float]] = {"plain": [], "diagnosed": []}
    with torch.inference_mode():
        plain()
        for _ in range(options.rounds):
            for name, run in (("plain", plain), ("diagnosed", diagnosed)):
                start = time.process_time()
                run()
                times[name].append((time.process_time() - start) / len(batches))
    middle = {name: statistics.median(found) for name, found in times.items()}
    ratio = middle["diagnosed"] / middle["plain"]
    print(
        json.dumps(
            {
                "model": options.model,
                "method": options.method,
                "threads": torch.get_num_threads(),
                "forward_ms": round(1e3 * middle["plain"], 1),
                "diagnosed_ms": round(1e3 * middle["diagnosed"], 1),
                "ratio": round(ratio, 2),
                "bound": BOUND,
                "trace_once_ms": round(1e3 * trace, 1),
                "statistics_mb": round(survey.state_bytes() / 2**20, 1),
            }
        )
    )
    return int(ratio > BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
