"""Which operators' rounding the mask feels: what `cod-tdq-plus` spends spare bits by.

    python benchmarks/felt.py split/rest/Imgs --model vit-cod --out results/vit-cod/felt.json

One entry per operator: F of its inputs at four bits and of its weight rounded to nearest, as
`methods/plus/spending.py` defines it, in the network with folded norms and chosen transforms.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch

from codtdq.data import open_images
from codtdq.evaluation import CalibrationImages
from codtdq.io import write_json
from codtdq.methods.collect import collect_inputs
from codtdq.methods.plus.method import choose_transforms, scheme_maker
from codtdq.methods.plus.spending import IMAGES, felt_errors, weight_options
from codtdq.methods.workbench import Workbench
from codtdq.resolve import open_config, open_model
from codtdq.schemes.transforms import Transform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("calibration", help="images: a folder, or a camosynth split")
    parser.add_argument("--model", default="vit-cod")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = open_model(args.model)
    images = CalibrationImages(model, open_images(args.calibration), count=args.images)
    work = copy.deepcopy(model).eval().requires_grad_(False)
    bench = Workbench(work, open_config(model, name="cod-tdq-plus"), images)
    stats = collect_inputs(bench)
    scheme = scheme_maker(bench, stats)
    _, transforms = choose_transforms(bench, stats, scheme)
    felt = felt_errors(bench, scheme, transforms)
    found = {}
    for site in bench.sites:
        options = weight_options(site, transforms.get(site.name, Transform()), felt[site.name])
        found[site.name] = {
            "elements": site.parameters,
            "inputs": float(f"{felt[site.name].inputs:.5g}"),
            "weight": float(f"{options[0].felt:.5g}"),
        }
    write_json(args.out, {"model": args.model, "images": args.images, "felt": found}, indent=1)


if __name__ == "__main__":
    main()
