"""`codtdq predict`: masks and overlays for images."""

from __future__ import annotations

import argparse
from typing import Any

from codtdq.cli.common import (
    add_calibration,
    add_config,
    add_model,
    add_weights,
    print_json,
    verb,
)


def register(verbs: Any) -> None:
    """Add the verb."""
    parser = verb(
        verbs, "predict", "write the mask of each image",
        ["photo.jpg --out masks", "'photos/*.jpg' --preset cod-tdq --overlay --out masks",
         "photos --model cfrn-w4a4 --out masks"],
    )  # fmt: skip
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image, folder or glob")
    add_model(parser)
    add_weights(parser)
    add_config(parser, None)
    add_calibration(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the masks")
    parser.add_argument("--overlay", action="store_true", help="write image + mask pictures too")
    parser.add_argument("--limit", type=int, metavar="N", help="use at most N images per argument")
    parser.add_argument(
        "--postprocess", choices=["sigmoid", "sigmoid-minmax", "binary"],
        help="how logits become a mask (default: the model's own)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Predict every image and list what was written."""
    from codtdq.data import ImageFolder
    from codtdq.evaluation.masks_to_files import predict_to_files
    from codtdq.opening import open_config, open_model, quantize_for

    sources = [ImageFolder(source, limit=args.limit) for source in args.images]
    model = open_model(args.model, args.checkpoint, untrained=args.untrained)
    config = open_config(model, name=args.preset, file=args.config, changes=args.set,
                         overrides=args.overrides, default=None)  # fmt: skip
    if config is not None:
        model = quantize_for(model, config, dataset=args.calibration, count=args.calibration_images)
    written = predict_to_files(
        model, sources, args.out, overlay=args.overlay, postprocess=args.postprocess
    )
    if args.json:
        print_json({"written": [str(path) for path in written]})
    else:
        print(f"{len(written)} files written to {args.out}")
