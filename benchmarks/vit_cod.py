"""Scores of vit-cod in float and at four bits, and how far the masks move from the float ones.

    python benchmarks/split_pairs.py CAMO-train split
    python benchmarks/vit_cod.py split/held-out --out results/vit-cod/results.jsonl
    python benchmarks/vit_cod.py split/held-out --calibration split/rest \\
        --settings fp32,dcrp-only,c1-only --out results/vit-cod/variants.jsonl
    python benchmarks/vit_cod.py camosynth --limit 40 --out results/vit-cod/camosynth.jsonl
    python benchmarks/vit_cod.py samples --out results/vit-cod/samples.jsonl \\
        --picture docs/images/vit-cod-samples.png

Settings are made here, those that need images with 32 of `--calibration`; `cod-tdq-plus` is the
model of the package, or what `--packed` names. Float runs in PyTorch, settings on the native
engine, which must be there; what it does not execute is simulated, and rows say so. `distance` is
the mean of |p - p of the float model| over the pixels of the network's input, averaged over images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from codtdq.data import open_dataset
from codtdq.environment import environment
from codtdq.evaluation import evaluate
from codtdq.evaluation.provenance import execution_of
from codtdq.lab.bench.speed.machine import require_engine
from codtdq.lab.mask_grid import MaskRow, mask_grid
from codtdq.operators.record import describe
from codtdq.resolve import open_config, open_model, quantize_for

MODEL = "vit-cod"
SETTINGS = ("fp32", "w4a4", "cod-tdq", "cod-tdq-guarded", "dstg-only", "cod-tdq-plus")
CALIBRATION_IMAGES = 32
SCORES = ("name", "S", "wF", "E_mean", "F_mean", "MAE")


def opened(setting: str, packed: str, calibration: str | None) -> nn.Module:
    if setting == "cod-tdq-plus":
        return open_model(packed, backend="cpu")
    model = open_model(MODEL)
    if setting == "fp32":
        return model
    config = open_config(model, name=setting)
    if config.needs_calibration and calibration is None:
        raise SystemExit(f"{setting} needs images: give --calibration")
    # "auto": a setting that no engine executes (the literal one) is simulated, and its row says so
    return quantize_for(
        model, config, dataset=calibration, count=CALIBRATION_IMAGES, backend="auto"
    )


def measured(model: nn.Module, dataset: str, limit: int | None) -> tuple[Any, Tensor]:
    """The result of `evaluate`, and the probabilities [N, H, W] at the size of the input."""
    maps: list[Tensor] = []
    keep = model.register_forward_hook(
        lambda _module, _inputs, outputs: maps.append(outputs[0].detach().sigmoid()[:, 0].half())
    )
    result = evaluate(model, dataset, limit=limit)
    keep.remove()
    return result, torch.cat(maps)


def drawn(dataset: str, limit: int | None, maps: dict[str, Tensor]) -> Image:
    """Images, their masks, and the masks of every setting side by side."""
    rows, images = [], open_dataset(dataset, limit=limit)
    for index in range(len(images)):
        sample = images[index]
        assert sample.mask is not None
        found = {
            setting: np.rint(each[index].float().numpy() * 255).astype(np.uint8)
            for setting, each in maps.items()
        }
        rows.append(MaskRow(sample.name, sample.image, sample.mask, found))
    return mask_grid(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="folder with Imgs and GT, or a camosynth split")
    parser.add_argument("--packed", default="vit-cod-w4a4", help="quantized by cod-tdq-plus")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="the float one comes first")
    parser.add_argument("--calibration", help="images for settings that need some")
    parser.add_argument("--float-maps", type=Path, help="file that keeps the float masks")
    parser.add_argument(
        "--picture", type=Path, help="PNG of all masks; of images that may be shown"
    )
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; rows are added")
    args = parser.parse_args()
    require_engine()
    if args.threads:
        torch.set_num_threads(args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    pictured: dict[str, Tensor] = {}
    kept: Path | None = args.float_maps
    exact = torch.load(kept) if kept is not None and kept.exists() else None
    for setting in args.settings.split(","):
        model = opened(setting, args.packed, args.calibration)
        result, maps = measured(model, args.dataset, args.limit)
        if setting == "fp32":
            exact = maps
            if kept is not None:
                torch.save(maps, kept)
        if exact is None:
            parser.error("distances are to the float masks: begin with fp32, or give --float-maps")
        if args.picture:
            pictured[setting] = maps
        distances = (maps.float() - exact.float()).abs().mean((1, 2))
        row = {
            "model": MODEL,
            "method": setting,
            "dataset": args.dataset,
            "limit": args.limit,
            "count": len(result.per_image),
            "metrics": {k: v for k, v in result.metrics.items() if k != "count"},
            "distance": float(distances.mean()),
            "execution": execution_of(model),
            "environment": environment(),
            "bits": None if setting == "fp32" else describe(model)["bits"],
            "per_image": {key: [image[key] for image in result.per_image] for key in SCORES}
            | {"distance": [round(value, 6) for value in distances.tolist()]},
        }
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        shown = {**row["metrics"], "distance": row["distance"]}
        scores = "  ".join(f"{key} {shown[key]:.4f}" for key in ("S", "wF", "MAE", "distance"))
        print(f"{setting:16s} {scores}  {row['execution']}", flush=True)
    if args.picture:
        drawn(args.dataset, args.limit, pictured).save(args.picture, optimize=True)


if __name__ == "__main__":
    main()
