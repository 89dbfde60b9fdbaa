"""`codtdq export`: a network for machines without torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from codtdq.cli.common import (
    DEFAULT_METHOD,
    add_calibration,
    add_config,
    add_weights,
    command_of,
    describe,
    opened_model,
    positive,
    print_json,
)
from codtdq.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "cfrn-small --to program --out net.codtdq",
            "small-w4a4 --to program --size 160 160 --size 320 320 --batch 4 --out net.codtdq",
            "escnet-small --method cod-tdq --to onnx --contract portable --out net.onnx",
            "vit-cod --method cod-tdq --to onnx --contract exact --out net.onnx",
        ],
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="registered name, or a directory that `codtdq quantize` wrote",
    )
    parser.add_argument(
        "--to",
        choices=["program", "onnx"],
        default="program",
        help="program: for codtdq.runtime and the C interface (default); onnx: for others",
    )
    parser.add_argument(
        "--contract",
        choices=["portable", "exact"],
        default="portable",
        help="of ONNX files: portable leaves activations float, exact quantizes them as the model "
        "does, in plain operators, and is slower (default portable)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write")
    parser.add_argument(
        "--size",
        nargs=2,
        type=positive,
        action="append",
        default=[],
        metavar=("H", "W"),
        help="input size, by default the model's own; a program file may have several",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=1,
        metavar="N",
        help="images that one run of a program may take (default 1)",
    )
    parser.add_argument(
        "--float",
        action="store_true",
        dest="plain",
        help="leave a registered model as it is, in float32",
    )
    add_weights(parser)
    add_config(parser, None)
    add_calibration(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Open or quantize the model, write the file, and say what is in it."""
    if args.to == "program" and args.contract != "portable":
        raise ConfigError(f"--contract {args.contract} is for ONNX files; add --to onnx")
    if args.to == "onnx" and len(args.size) > 1:
        raise ConfigError("an ONNX file has one size; give --size once")
    (_to_onnx if args.to == "onnx" else _to_program)(args, _opened(args))


def _opened(args: argparse.Namespace) -> nn.Module:
    """The model: a registered one is quantized, unless it is asked for in float32."""
    from codtdq.models import list_models

    asked = args.method or args.config
    if args.plain and (asked or args.set or args.overrides):
        raise ConfigError("--float keeps a model as it is; leave out --method, --config and --set")
    if args.model in list_models():
        args.default_method = None if args.plain else DEFAULT_METHOD
    elif asked:
        raise ConfigError(f"{args.model} is quantized already; leave out --method and --config")
    return opened_model(args)


def _to_program(args: argparse.Namespace, model: nn.Module) -> None:
    from codtdq.exporting.program import export_program

    sizes = [(height, width) for height, width in args.size]
    done = export_program(model, args.out, sizes=sizes, batch=args.batch)
    if args.json:
        print_json({**done.to_dict(), "command": command_of(args)})
        return
    print(f"{done.path}: {done.model}, {done.method}, {done.bytes / 2**20:.2f} MiB")
    for shape, arena in zip(done.shapes, done.arena_bytes):
        size = " x ".join(map(str, shape))
        print(f"input {size}: {arena} bytes of memory for a run ({arena / 2**20:.1f} MiB)")
    listed = ", ".join(f"{name} {count}" for name, count in done.operators.items())
    print(f"{sum(done.operators.values())} operators: {listed}")


def _to_onnx(args: argparse.Namespace, model: nn.Module) -> None:
    from codtdq.exporting.onnx_file import export_onnx

    size = tuple(args.size[0]) if args.size else None
    done = export_onnx(model, args.out, contract=args.contract, size=size, batch=args.batch)
    if args.json:
        print_json({**done.to_dict(), "command": command_of(args)})
        return
    print(
        f"{done.path}: {done.model}, {done.method}, contract {done.contract}, "
        f"{done.bytes / 2**20:.2f} MiB ({done.float_bytes / done.bytes:.2f}x smaller than FP32), "
        f"weights of {done.packed} of {done.operators} operators as codes"
    )
    print(done.deviation or "masks not compared: onnxruntime is not installed")
