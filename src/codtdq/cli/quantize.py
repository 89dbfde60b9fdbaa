"""`codtdq quantize`: from a float model to a small directory."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from codtdq.cli.common import (
    DEFAULT_METHOD,
    add_calibration,
    add_config,
    add_model,
    add_size,
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
            "--out small-w4a4",
            "--model cfrn --checkpoint cfrn.pth --calibration photos --out plus",
            "--model cfrn --checkpoint cfrn.pth --preset cod-tdq --out cfrn-w4a4",
            "--preset cod-tdq --set io_correction=bias --calibration my-images --out corrected",
        ],
    )
    add_model(parser, packed=False)
    add_weights(parser)
    add_size(parser)
    add_config(parser, DEFAULT_METHOD)
    parser.add_argument("--out", required=True, metavar="DIR", help="directory to write")
    parser.add_argument(
        "--resume", action="store_true", help="go on with a calibration that was stopped"
    )
    add_calibration(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Quantize, save, and say what became of it."""
    from codtdq.api import save
    from codtdq.checkpoint import read_header
    from codtdq.checkpoint.files import META
    from codtdq.operators.record import describe

    # what a stopped calibration has finished; a run that ends well leaves nothing
    unfinished = Path(f"{args.out}.unfinished")
    if not args.resume:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        quantized = opened_model(args, size=args.size, state_dir=unfinished)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(unfinished)) from None
    path = save(quantized, args.out)
    shutil.rmtree(unfinished, ignore_errors=True)
    ours = (read_header(path)["weights"], META)  # other files are the user's
    size = sum((path / name).stat().st_size for name in ours)
    described = describe(quantized)
    header = size - described["packed_bytes"]
    summary = {"out": str(path), "bytes": size, "header_bytes": header, **described}
    if args.json:
        print_json(summary)
        return
    print(
        f"{path}: {summary['name']}, {summary['quantized_operators']} of {summary['operators']} "
        f"operators quantized, {size / 2**20:.2f} MiB "
        f"({summary['fp32_bytes'] / size:.2f}x smaller than FP32; {header / 2**20:.2f} MiB of it "
        "are names, shapes and settings)"
    )
    bits = summary["bits"]
    print(f"bits per value: weights {bits['weight']:.2f}, activations {bits['activation']:.2f}")


def _kept(unfinished: Path) -> str:
    """What an interrupted calibration leaves, in words."""
    count = sum(1 for _ in unfinished.rglob("*.safetensors"))
    if not count:
        shutil.rmtree(unfinished, ignore_errors=True)
        return "interrupted before anything was finished; nothing is kept"
    return (
        f"interrupted; {count} finished parts are kept in {unfinished}, "
        "the same command with --resume goes on"
    )
