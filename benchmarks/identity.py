"""Whether a network gives the same masks with every instruction set of this machine.

    python benchmarks/identity.py --out results/speed/identity.json

Each network is quantized once and stored; every set then loads the same file, runs the same images
(synthetic scenes and the samples of the package) and is compared with the best one: how many maps
of probabilities are equal bit for bit, the largest difference of a probability, the
smallest overlap of the masks cut at .5, and how many 8-bit masks are equal.
`python benchmarks/speed_tables.py` draws the table into docs/native-engine.md.

    python benchmarks/identity.py --simulated --out results/speed/simulated.json

compares the simulation in PyTorch with the best set instead, for docs/limits.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import codtdq
from codtdq.data import open_dataset
from codtdq.data.transforms import to_input
from codtdq.engine.cpu import library
from codtdq.environment import environment
from codtdq.evaluation.predict import mask_logits
from codtdq.io import write_json
from codtdq.models.weights import shipped_weights

MODELS = ("escnet-small", "cfrn-small", "vit-cod")
METHODS = ("cod-tdq", "cod-tdq-guarded", "cod-tdq-plus", "w4a8")
PACKED = {("vit-cod", "cod-tdq-plus"): "vit-cod-w4a4"}  # comes with the package, not made again
FACTS = ("cpu", "torch", "codtdq")


def images_of(scenes: int, samples: int) -> list[Any]:
    """Pictures: the first scenes of camosynth, the first samples of the package."""
    sets = (("camosynth/test-texture", scenes), ("samples", samples))
    return [one.image for name, n in sets if n for one in open_dataset(name, limit=n)]


def probabilities(model: nn.Module, pictures: list[Any]) -> Tensor:
    """Maps [images, 1, h, w], an image at a time."""
    info: Any = model.info
    inputs = (to_input(one, info.input_size, info.mean, info.std).unsqueeze(0) for one in pictures)
    return torch.cat([mask_logits(model, info, x).sigmoid() for x in inputs])


def compared(found: Tensor, wanted: Tensor) -> dict[str, Any]:
    """Of maps [images, ...] against those of the best set."""
    both = list(zip(found, wanted))
    overlaps = []
    for a, b in both:
        inside, joined = ((a >= 0.5) & (b >= 0.5)).sum(), ((a >= 0.5) | (b >= 0.5)).sum()
        overlaps.append(float(inside / joined) if joined else 1.0)
    bytes_of = [[(255 * one).round() for one in pair] for pair in both]
    return {
        "images": len(both),
        "identical": sum(torch.equal(a, b) for a, b in both),
        "identical_bytes": sum(torch.equal(a, b) for a, b in bytes_of),
        "max_difference": max(float((a - b).abs().max()) for a, b in both),
        "min_iou": min(overlaps),
        "mean_iou": sum(overlaps) / len(overlaps),
        "mean_difference": float((found - wanted).abs().mean()),
    }


def stored(model: str, method: str, folder: Path, calibration_images: int) -> Path:
    """A packed checkpoint of a network: that of the package, or one made here."""
    if (model, method) in PACKED:
        return Path(shipped_weights(PACKED[model, method]))
    scenes = open_dataset("camosynth/calib", limit=calibration_images)
    made = codtdq.quantize(codtdq.create_model(model), method, calibration=scenes)
    codtdq.save(made, folder / f"{model}-{method}")
    return folder / f"{model}-{method}"


def rows_of(model: str, method: str, file: Path, pictures: list[Any]) -> list[dict[str, Any]]:
    """A row for each instruction set but the best, against which they are held."""
    used, found, record = library.instruction_set(), {}, {}
    assert used is not None
    try:
        for name in library.available_sets():
            library.select(name)
            network = codtdq.load(file, backend="cpu")
            found[name] = probabilities(network, pictures)
            record[name] = codtdq.backend_of(network)
    finally:
        library.select(used)
    best, *others = found
    rows = []
    for name in others:
        kept = record[name]
        said: dict[str, Any] = {"model": model, "method": method, "set": name, "against": best}
        said |= {"native": len(kept.native), "fallbacks": len(kept.fallbacks)}
        said |= {"float_operators": len(kept.float_operators), "captured": bool(kept.programs)}
        rows.append(said | compared(found[name], found[best]))
    return rows


def simulated(model: str, method: str, file: Path, pictures: list[Any]) -> list[dict[str, Any]]:
    """One row: the same file, simulated in PyTorch, against the best set."""
    best = codtdq.load(file, backend="cpu")
    wanted = probabilities(best, pictures)
    found = probabilities(codtdq.load(file, backend="reference"), pictures)
    said = {"model": model, "method": method, "set": "simulated"}
    said |= {"against": str(library.instruction_set())}
    captured = bool(codtdq.backend_of(best).programs)
    return [said | {"captured": captured} | compared(found, wanted)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--scenes", type=int, default=2, help="of camosynth/test-texture")
    parser.add_argument("--samples", type=int, default=1, help="of the package")
    parser.add_argument("--calibration-images", type=int, default=8)
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    parser.add_argument("--simulated", action="store_true", help="hold the simulation against it")
    args = parser.parse_args()
    rows_of_file = simulated if args.simulated else rows_of
    pictures = images_of(args.scenes, args.samples)
    facts = environment()
    document: dict[str, Any] = {
        "machine": {key: facts[key] for key in FACTS} | {"sets": library.available_sets()},
        "settings": {"scenes": args.scenes, "samples": args.samples}
        | {"calibration_images": args.calibration_images},
        "identity": [],
    }
    cases = [(model, how) for how in args.methods.split(",") for model in args.models.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for model, method in cases:
            file = stored(model, method, Path(folder), args.calibration_images)
            for row in rows_of_file(model, method, file, pictures):
                document["identity"].append(row)
                print(
                    f"{model:13} {method:16} {row['set']:12} {row['identical']} of "
                    f"{row['images']} identical, difference {row['max_difference']:.1e}, "
                    f"overlap {row['min_iou']:.4f}, captured {row['captured']}",
                    flush=True,
                )
            if args.out:
                write_json(args.out, document)  # what is done stays if the rest is stopped


if __name__ == "__main__":
    main()
