"""What each ingredient of cod-tdq-plus is worth: left out in turn, and added alone to cod-tdq.

Agreement with the float masks (mean absolute difference of probabilities, and the overlap of the
masks) and the S-measure, on images of camosynth/val: no test image is seen. One JSON line per
setting as it is done; `--stress` plants outlier channels first; `--out FILE` keeps the lines and
skips settings that it holds already.

    python benchmarks/plus_ingredients.py --calibration 32 --images 96 --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.evaluation.batching import batch_size_for
from codtdq.evaluation.predict import mask_logits
from codtdq.lab.stress import plant_outliers
from codtdq.methods import apply_method

# ingredient -> (fields without it, fields with it)
INGREDIENTS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "zero-points": (
        {"token_zero": "none", "pixel_zero": "none"},
        {"token_zero": "inside", "pixel_zero": "inside"},
    ),
    "pixel groups": ({"pixel_groups": False}, {"pixel_groups": True}),
    "weighed ranges": ({"trials": 1}, {"trials": 2}),
    "equalised norms": ({"equalize": False}, {"equalize": True}),
    "transforms": ({"transforms": []}, {"transforms": ["shift", "scale", "order", "hadamard"]}),
    "weight groups": ({"weight_group_size": None}, {"weight_group_size": 32}),
    "searched weight scales": ({"search": False}, {"search": True}),
    "ridge-shifted target": ({"ridges": []}, {"ridges": [0.01, 0.05, 0.3]}),
    "compensation": ({"compensate": False}, {"compensate": True}),
    "coordinate descent": ({"sweeps": 0}, {"sweeps": 2}),
    "compensation and descent": (
        {"compensate": False, "sweeps": 0},
        {"compensate": True, "sweeps": 2},
    ),
    "bias correction": ({"correct_bias": False}, {"correct_bias": True}),
}
# cod-tdq in terms of the same config: its ranges, a weight scale per output, rounding to nearest
PAPER: dict[str, object] = {"base": "cod-tdq-per-tensor-conv", "everywhere": False}
for _without, _ in INGREDIENTS.values():
    PAPER |= _without


def settings() -> dict[str, tuple[str, dict[str, object]]]:
    """Label -> method and changes of its config."""
    plus = "cod-tdq-plus"
    found: dict[str, tuple[str, dict[str, object]]] = {"everything": (plus, {})}
    for name, (without, _) in INGREDIENTS.items():
        found[f"without {name}"] = (plus, without)
    found["cod-tdq-per-tensor-conv"] = ("cod-tdq-per-tensor-conv", {})
    found["cod-tdq by the same code"] = (plus, PAPER)
    found["cod-tdq with token groups everywhere"] = (plus, PAPER | {"everywhere": True})
    for name, (_, added) in INGREDIENTS.items():
        found[f"cod-tdq with {name}"] = (plus, PAPER | added)
    return found


def probabilities(model: nn.Module, like: nn.Module, batches: list[Tensor]) -> Tensor:
    """Masks [N, 1, h, w] between 0 and 1, in batches whose images do not change each other."""
    size = batch_size_for(model)
    with torch.no_grad():
        parts = [part for batch in batches for part in batch.split(size)]
        return torch.cat([torch.sigmoid(mask_logits(model, like.info, part)) for part in parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cfrn-small,escnet-small")
    parser.add_argument("--calibration", type=int, default=32, help="images")
    parser.add_argument("--images", type=int, default=48, help="of camosynth/val")
    parser.add_argument("--stress", action="store_true", help="plant outlier channels")
    parser.add_argument("--only", default="", help="settings whose label contains this text")
    parser.add_argument("--out", type=Path, help="file of rows; finished ones are skipped")
    args = parser.parse_args()
    rows = args.out.read_text().splitlines() if args.out and args.out.exists() else []
    done = {_key(row) for row in map(json.loads, rows)}
    for name in args.models.split(","):
        about = {
            "model": name,
            "stress": args.stress,
            "calibration": args.calibration,
            "images": args.images,
        }
        wanted = {
            label: what
            for label, what in settings().items()
            if args.only in label and _key(about | {"setting": label}) not in done
        }
        for row in measure(about, wanted) if wanted else ():
            line = json.dumps(row) + "\n"
            sys.stdout.write(line)
            sys.stdout.flush()
            if args.out:
                with args.out.open("a") as file:
                    file.write(line)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("model", "stress", "calibration", "images", "setting"))


def measure(
    about: dict[str, Any], wanted: dict[str, tuple[str, dict[str, object]]]
) -> Iterator[dict[str, object]]:
    """Rows of one model; about: what they begin with."""
    model = codtdq.create_model(about["model"]).eval()
    calib = open_dataset("camosynth/calib", limit=about["calibration"])
    data = CalibrationImages(model, calib, count=about["calibration"], batch_size=8)
    val = open_dataset("camosynth/val", limit=about["images"])
    batches = list(CalibrationImages(model, val, count=about["images"], batch_size=8))
    masks, best = probabilities(model, model, batches), evaluate(model, val).metrics["S"]
    start = plant_outliers(model, next(iter(data))) if about["stress"] else model
    for label, (method, changes) in wanted.items():
        before = time.process_time()
        quantized = apply_method(start, method, data, changes=changes)
        seconds = time.process_time() - before
        found = probabilities(quantized, model, batches)
        both, either = (found > 0.5) & (masks > 0.5), (found > 0.5) | (masks > 0.5)
        yield {
            **about,
            "setting": label,
            "difference": round(float((found - masks).abs().mean()), 5),
            "overlap": round(float(both.sum() / either.sum()), 4),
            "S": round(evaluate(quantized, val).metrics["S"], 4),
            "S_float": round(best, 4),
            "bits": quantized.quant_record.bits,
            "calibration_seconds": round(seconds, 1),
        }


if __name__ == "__main__":
    main()
