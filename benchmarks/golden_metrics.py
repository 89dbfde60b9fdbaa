"""Metrics of the shipped weights under every preset, by `codtdq eval`, as the test suite checks.

    python benchmarks/golden_metrics.py [--limit 64] [--models cfrn-small,escnet-small]

Writes tests/evaluation/golden_metrics.json: for each model and preset the mean scores over the
first images of the four camosynth (synthetic) test splits, and those of the first 8 images, which
the default test suite repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from pathlib import Path

import torch

from codtdq.cli import main as codtdq
from codtdq.environment import environment
from codtdq.planning import list_presets

TARGET = Path(__file__).parent.parent / "tests" / "evaluation" / "golden_metrics.json"
SHORT = 8


def scores(model: str, preset: str, limit: int) -> dict[str, float]:
    """One run of the command."""
    out = io.StringIO()
    argv = (
        f"eval --model {model} --method {preset} --limit {limit} --backend reference --json".split()
    )
    with contextlib.redirect_stdout(out):
        code = codtdq(argv)
    if code:
        raise SystemExit(code)
    return {k: round(v, 6) for k, v in json.loads(out.getvalue())["metrics"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--models", default="cfrn-small,escnet-small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=TARGET)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = json.loads(args.out.read_text()) if args.out.exists() else {}
    data.update(limit=args.limit, short=SHORT, environment=environment())
    for model in args.models.split(","):
        rows = data.setdefault("models", {}).setdefault(model, {})
        for preset in list_presets():
            rows[preset] = {
                "full": scores(model, preset, args.limit),
                "short": scores(model, preset, SHORT),
            }
            print(f"{model:14s} {preset:18s} S {rows[preset]['full']['S']:.4f}", flush=True)
            args.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
