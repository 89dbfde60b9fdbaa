"""Sharpens the mask of vit-cod: a factor and an offset on its logits, chosen on training images.

Trained with a soft loss, the network says "perhaps" too often: a map that is grey where nothing is
costs MAE. The logits a z + b of a few (a, b) are scored on training photographs, every ninth. Of
those with S no lower than unchanged, the one with the largest wF is kept; the last two layers take
it over, in the stored 8-bit blocks of whose weights only the steps change. No layer is trained.

    python benchmarks/split_pairs.py CAMO-train split
    python benchmarks/sharpen_vit_cod.py split/rest --weights trained.safetensors \\
        --out src/codtdq/weights/vit-cod.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from codtdq.data.folder import ImageMaskFolder
from codtdq.data.transforms import to_input
from codtdq.evaluation.masks import to_mask
from codtdq.evaluation.predict import mask_logits
from codtdq.io import write_tensors
from codtdq.metrics.suite import MetricSuite
from codtdq.models import create_model, model_info
from codtdq.models.block_weights import LOW, STEP
from codtdq.tensorfile import read_tensors

MODEL = "vit-cod"
HEADS = ("decoder.mask_logits", "decoder.coarse")  # the mask is the sum of both
SHIFTED = "decoder.mask_logits.bias"
EVERY = 9
CHOICES = [(1.0, 0.0)] + [(a, b) for a in (1.25, 1.5, 2.0) for b in (0.0, -0.5, -1.0)]


def scored(
    model: nn.Module, folder: ImageMaskFolder
) -> dict[tuple[float, float], dict[str, float]]:
    """Metrics of every choice on the photographs."""
    info = model_info(MODEL)
    suites = {choice: MetricSuite() for choice in CHOICES}
    for index in range(0, len(folder), EVERY):
        sample = folder[index]
        assert sample.mask is not None
        image = to_input(sample.image, info.input_size, info.mean, info.std)
        logits = mask_logits(model, info, image.unsqueeze(0))[0]
        shape = (sample.mask.shape[0], sample.mask.shape[1])
        for (factor, offset), suite in suites.items():
            mask = to_mask(factor * logits + offset, shape, info.postprocess)
            suite.update(mask, sample.mask, name=sample.name)
    return {choice: suite.compute() for choice, suite in suites.items()}


def chosen(scores: dict[tuple[float, float], dict[str, float]]) -> tuple[float, float]:
    """The largest wF of those that do not lower S."""
    least = scores[CHOICES[0]]["S"]
    return max((c for c in scores if scores[c]["S"] >= least), key=lambda c: scores[c]["wF"])


def sharpen(source: Path, out: Path, factor: float, offset: float) -> None:
    """Write the stored weights with other logits."""
    tensors, metadata = read_tensors(source)
    for name in tensors:
        layer, _, leaf = name.partition("#")[0].rpartition(".")
        if layer in HEADS and (leaf == "bias" or name.endswith((LOW, STEP)) or "#" not in name):
            tensors[name] = tensors[name] * factor
    tensors[SHIFTED] = tensors[SHIFTED] + offset
    write_tensors(out, tensors, metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, help="training photographs: folder with Imgs and GT")
    parser.add_argument("--weights", type=Path, required=True, help="as training left them, block8")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = create_model(MODEL, checkpoint=args.weights)
    scores = scored(model, ImageMaskFolder(args.pairs))
    for (factor, offset), found in scores.items():
        shown = "  ".join(
            f"{key} {found[key]:.4f}" for key in ("S", "wF", "E_mean", "F_max", "MAE")
        )
        print(f"{factor:4.2f} z {offset:+.1f}   {shown}")
    factor, offset = chosen(scores)
    sharpen(args.weights, args.out, factor, offset)
    print(f"{args.out}: {factor:g} z {offset:+g}")


if __name__ == "__main__":
    main()
