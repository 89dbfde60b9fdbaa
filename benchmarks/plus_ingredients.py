"""What each ingredient of cod-tdq-plus is worth: left out in turn, and alone on bare token groups.

Agreement with the float masks (mean absolute difference of probabilities, and the overlap of the
masks) and the S-measure, on images of camosynth/val: no test image is seen. One JSON line per
setting as it is done; `--stress` plants outlier channels first.

    python benchmarks/plus_ingredients.py --models cfrn-small --calibration 32 --images 48
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from torch import Tensor, nn

import codtdq
from codtdq.convert.stress import plant_outliers
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.evaluation.predict import mask_logits
from codtdq.methods import apply_method

WITHOUT = {
    "zero-points": {"token_zero": "none", "pixel_zero": "none"},
    "pixel groups": {"pixel_groups": False},
    "weighed ranges": {"trials": 1},
    "equalised norms": {"equalize": False},
    "transforms": {"transforms": []},
    "ridge-shifted target": {"ridges": []},
    "compensation": {"compensate": False},
    "coordinate descent": {"sweeps": 0},
    "compensation and descent": {"compensate": False, "sweeps": 0},
    "bias correction": {"correct_bias": False},
}
BARE = {name: value for part in WITHOUT.values() for name, value in part.items()}
FULL = {
    "token_zero": "inside", "pixel_zero": "inside",
    "pixel_groups": True, "trials": 4, "equalize": True,
    "transforms": ["shift", "scale", "order", "hadamard"], "ridges": [0.01, 0.05, 0.3],
    "compensate": True, "sweeps": 2, "correct_bias": True,
}  # fmt: skip


def settings() -> dict[str, dict[str, object]]:
    """Label -> changes of the config."""
    found: dict[str, dict[str, object]] = {"everything": {}}
    found |= {f"without {name}": dict(part) for name, part in WITHOUT.items()}
    found["bare token groups"] = dict(BARE)
    for name, part in WITHOUT.items():
        found[f"only {name}"] = BARE | {key: FULL[key] for key in part}
    return found


def probabilities(model: nn.Module, like: nn.Module, batches: list[Tensor]) -> Tensor:
    """Masks [N, 1, h, w] between 0 and 1."""
    with torch.no_grad():
        return torch.cat([torch.sigmoid(mask_logits(model, like.info, b)) for b in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cfrn-small,escnet-small")
    parser.add_argument("--calibration", type=int, default=32, help="images")
    parser.add_argument("--images", type=int, default=48, help="of camosynth/val")
    parser.add_argument("--stress", action="store_true", help="plant outlier channels")
    parser.add_argument("--only", default="", help="settings whose label contains this text")
    args = parser.parse_args()
    for name in args.models.split(","):
        model = codtdq.create_model(name).eval()
        calib = open_dataset("camosynth/calib", limit=args.calibration)
        data = CalibrationImages(model, calib, count=args.calibration, batch_size=8)
        val = open_dataset("camosynth/val", limit=args.images)
        batches = list(CalibrationImages(model, val, count=args.images, batch_size=8))
        wanted, best = probabilities(model, model, batches), evaluate(model, val).metrics["S"]
        start = plant_outliers(model, next(iter(data))) if args.stress else model
        for label, changes in settings().items():
            if args.only not in label:
                continue
            before = time.process_time()
            quantized = apply_method(start, "cod-tdq-plus", data, changes=changes)
            seconds = time.process_time() - before
            found = probabilities(quantized, model, batches)
            both, either = (found > 0.5) & (wanted > 0.5), (found > 0.5) | (wanted > 0.5)
            row = {
                "model": name, "stress": args.stress, "setting": label,
                "difference": round(float((found - wanted).abs().mean()), 5),
                "overlap": round(float(both.sum() / either.sum()), 4),
                "S": round(evaluate(quantized, val).metrics["S"], 4), "S_float": round(best, 4),
                "bits": quantized.method_record.bits, "calibration_seconds": round(seconds, 1),
            }  # fmt: skip
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
