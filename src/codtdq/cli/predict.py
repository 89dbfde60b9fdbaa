"""`codtdq predict`: masks and overlays for images."""

from __future__ import annotations

import argparse

from codtdq.cli.common import (
    add_calibration,
    add_config,
    add_model,
    add_postprocess,
    add_weights,
    describe,
    opened_model,
    print_json,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "photo.jpg --out masks",
            "'photos/*.jpg' --preset cod-tdq --overlay --out masks",
            "photos --model cfrn-w4a4 --out masks",
        ],
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image, folder or glob")
    add_model(parser)
    add_weights(parser)
    add_config(parser, None)
    add_calibration(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the masks")
    parser.add_argument("--overlay", action="store_true", help="write image + mask pictures too")
    parser.add_argument("--limit", type=int, metavar="N", help="use at most N images per argument")
    add_postprocess(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Predict every image and list what was written."""
    from codtdq.data import ImageFolder
    from codtdq.evaluation.masks_to_files import predict_to_files

    sources = [ImageFolder(source, limit=args.limit) for source in args.images]
    model = opened_model(args)
    written = predict_to_files(
        model, sources, args.out, overlay=args.overlay, postprocess=args.postprocess
    )
    if args.json:
        print_json({"written": [str(path) for path in written]})
    else:
        print(f"{len(written)} files written to {args.out}")
