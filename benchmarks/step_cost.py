"""What learning costs: ms per step of each method that learns, and so hours of each budget.

    python benchmarks/step_cost.py --model cfrn-small --out results/budgets/cost-cfrn-small.json

Runs each method under the paper's budget, but with few images and steps, and takes the processor
time of its parts: steps, passes that collect what a block reads, passes for Fisher rows (FIMA-Q),
and the rest (starting grids). A budget then costs rest + steps + passes, each as often as it asks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from codtdq.api import config
from codtdq.environment import environment
from codtdq.methods.rivals import block_learning, fima_q, pq_sam_tuning, reconstruction
from codtdq.resolve import open_model, quantize_for

BLOCKS = ("ptq4sam", "ahcptq", "fima-q")
TUNED = "pq-sam"
BUDGETS = ("tenth", "paper")  # "fast" steps take four images at once: its rows have its time
PAPER = block_learning.BUDGETS["paper"]
TUNED_STEPS = {"tenth": 1_000, "paper": 10_000}  # of PQ-SAM, in all


class Clock:
    """Processor seconds and calls of functions that are wrapped; time inside another is its own."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inner = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.process_time() - begin
                self.seconds[name] += spent - self._inner.pop()
                self._inner[-1] += spent
                self.calls[name] += 1

        return wrapped


PLACES = {
    "steps": (block_learning, "_optimise"),
    "passes": (reconstruction, "BlockData"),
    "fisher": (fima_q.FisherReconstruction, "_measure"),
    "tuning": (pq_sam_tuning.OutputTuner, "_step"),
}


def measured(model: torch.nn.Module, method: str, steps: int, images: int) -> dict[str, Any]:
    """Parts of one short run, JSON-ready."""
    clock, kept = Clock(), {name: getattr(*place) for name, place in PLACES.items()}
    for name, (owner, attribute) in PLACES.items():
        setattr(owner, attribute, clock.timed(name, kept[name]))
    block_learning.BUDGETS["paper"] = dataclasses.replace(PAPER, steps=steps, images=images)
    settings = config(method, model=model)
    if method == TUNED:
        settings = settings.replace(paper_steps=steps)
    try:
        run = clock.timed("rest", quantize_for)
        quantized = run(model, settings, count=images, budget="paper")
    finally:
        block_learning.BUDGETS["paper"] = PAPER
        for name, (owner, attribute) in PLACES.items():
            setattr(owner, attribute, kept[name])
    passes = clock.calls["fisher"] * images
    found: dict[str, Any] = {
        "blocks": clock.calls["steps"],
        "steps": quantized.quant_record.steps,
        "ms_per_step": 1e3 * (clock.seconds["steps"] + clock.seconds["tuning"]),
        "rest_seconds": clock.seconds["rest"],
        "seconds_per_image_collected": clock.seconds["passes"] / images,
        "fisher_ms_per_pass": 1e3 * clock.seconds["fisher"] / max(passes, 1),
    }
    found["ms_per_step"] /= max(found["steps"], 1)
    found["hours"] = {budget: hours(method, found, budget) for budget in BUDGETS}
    return found


def hours(method: str, cost: dict[str, Any], budget: str) -> float:
    """Processor hours of a whole calibration, 128 images."""
    if method == TUNED:
        return (cost["rest_seconds"] + TUNED_STEPS[budget] * cost["ms_per_step"] / 1e3) / 3600
    asked = block_learning.BUDGETS[budget]
    seconds = cost["rest_seconds"] + asked.images * cost["seconds_per_image_collected"]
    seconds += cost["blocks"] * asked.steps * cost["ms_per_step"] / 1e3
    rows = fima_q._RANK[budget] * fima_q._FISHER_IMAGES[budget]
    seconds += cost["blocks"] * rows * cost["fisher_ms_per_pass"] / 1e3
    return seconds / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cfrn-small")
    parser.add_argument("--methods", default=",".join((TUNED, *BLOCKS)))
    parser.add_argument("--steps", type=int, default=10, help="per block (PQ-SAM: in all)")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True, help="JSON; methods are replaced in it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    document = json.loads(args.out.read_text()) if args.out.exists() else {"methods": {}}
    document |= {"model": args.model, "steps": args.steps, "images": args.images}
    model = open_model(args.model)
    for method in args.methods.split(","):
        found = measured(model, method, args.steps, args.images)
        document["methods"][method] = found
        document["environment"] = environment()
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n")
        sys.stdout.write(f"{method}: {json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
