"""`codtdq bench kernels`, `storage` and `deployment`: speed, memory and bytes."""

from __future__ import annotations

import argparse
from typing import Any

from codtdq.lab.commands import bench_speed_latency
from codtdq.lab.commands import bench_speed_tables as tables
from codtdq.lab.commands.bench_speed_options import (
    add_kind,
    add_measuring,
    add_network,
    add_output,
    begin,
    checked_threads,
    finish,
)
from codtdq.lab.commands.options import model_file, positive, words


def register(kinds: Any) -> None:
    """Add the kinds."""
    _register_kernels(kinds)
    bench_speed_latency.register(kinds)
    _register_storage(kinds)
    _register_deployment(kinds)


def _register_kernels(kinds: Any) -> None:
    parser = add_kind(
        kinds,
        "kernels",
        "time single operators of the native engine against torch FP32",
        ["", "--only linear --threads 1", "--seconds 5 --format markdown"],
    )
    parser.add_argument(
        "--only",
        type=words,
        metavar="K,..",
        help="quantizer-max, quantizer, quantizer-reference, linear, conv (default all)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="at most N shapes of a kind")
    add_measuring(parser, seconds=2.0, per="shape and thread count")
    parser.set_defaults(run=run_kernels)


def _register_storage(kinds: Any) -> None:
    parser = add_kind(
        kinds,
        "storage",
        "split the bytes of a packed checkpoint by what they are for",
        [
            "--model cfrn-small",
            "--model cfrn --setting paper",
            "--model cfrn --methods w4a4,cod-tdq",
            "--packed cfrn-w4a4",
        ],
    )
    add_network(parser)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--methods",
        type=words,
        default=["cod-tdq"],
        metavar="P,..",
        help="methods or presets to store (default cod-tdq)",
    )
    chosen.add_argument(
        "--setting", choices=["paper"], help="paper: what its byte counts mean, cod-tdq-literal"
    )
    parser.add_argument(
        "--packed", metavar="DIR", help="a directory that `codtdq quantize` wrote, instead"
    )
    add_output(parser)
    parser.set_defaults(run=run_storage)


def _register_deployment(kinds: Any) -> None:
    parser = add_kind(
        kinds,
        "deployment",
        "the paper's deployment table: size, speed, memory, coverage",
        [
            "--untrained",
            "--models cfrn-small,escnet-small --batch 1 --threads 1",
            "--checkpoint cfrn=cfrn.pth --checkpoint escnet=escnet.pth --format markdown",
            "--models cfrn --untrained --methods ptq4sam,repq-vit,igq-vit --out runtime.json",
        ],
    )
    parser.add_argument(
        "--models",
        type=words,
        default=["cfrn", "escnet"],
        metavar="M,..",
        help="default cfrn,escnet",
    )
    parser.add_argument(
        "--checkpoint",
        type=model_file,
        action="append",
        default=[],
        metavar="MODEL=FILE",
        help="released weights of a model; may be repeated",
    )
    parser.add_argument(
        "--untrained", action="store_true", help="accept random weights: the speed is the same"
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=4,
        metavar="N",
        help="images per forward pass (default 4, as in the paper)",
    )
    parser.add_argument(
        "--methods",
        type=words,
        default=[],
        metavar="P,..",
        help="beside fp32, w4a4, dstg-only and cod-tdq; the paper's table has "
        "ptq4sam,repq-vit,igq-vit (default none)",
    )
    parser.add_argument(
        "--processes",
        type=positive,
        default=3,
        metavar="N",
        help="per peak memory figure (default 3)",
    )
    parser.add_argument(
        "--calibration-images",
        type=positive,
        default=4,
        metavar="N",
        help="for methods that need them; times and sizes do not depend on them (default 4)",
    )
    add_measuring(parser, seconds=60.0, per="model", one_thread_count=True)
    parser.set_defaults(run=run_deployment)


def run_kernels(args: argparse.Namespace) -> int:
    """Time operators."""
    from codtdq.lab.bench.speed import kernels

    facts = begin(args)
    result = kernels.run_kernels(
        kinds=args.only or kernels.KINDS,
        threads=checked_threads(args.threads),
        seconds=args.seconds,
        limit=args.limit,
    )
    finish(args, facts, result, tables.kernel_tables(result))
    return 0


def run_storage(args: argparse.Namespace) -> int:
    """Split the bytes."""
    from codtdq.lab.bench.speed.storage import storage_split
    from codtdq.lab.bench.speed.subjects import BASELINE, prepared

    facts = begin(args)
    if args.setting == "paper":
        args.methods = ["cod-tdq-literal"]
    if args.packed is not None:
        splits = {args.packed: storage_split(args.packed).to_dict()}
    else:
        with prepared(
            args.model,
            args.methods,
            checkpoint=args.checkpoint,
            untrained=True,  # bytes do not depend on what the weights are
            native=False,
        ) as subjects:
            splits = {
                name: storage_split(subject.path).to_dict()
                for name, subject in subjects.members.items()
                if name != BASELINE
            }
    name = args.packed or args.model
    finish(args, facts, {"model": name, "splits": splits}, [tables.storage_table(name, splits)])
    return 0


def run_deployment(args: argparse.Namespace) -> int:
    """Measure and print the paper's table for every model."""
    from codtdq.lab.bench.speed.deployment import run_deployment as measure
    from codtdq.lab.bench.speed.machine import cores

    facts = begin(args)
    threads = checked_threads([args.threads or cores()])[0]
    results = measure(
        args.models,
        rivals=args.methods,
        batch=args.batch,
        threads=threads,
        seconds=args.seconds,
        repeats=args.processes,
        checkpoints=dict(args.checkpoint),
        untrained=args.untrained,
        imports=args.imports,
        calibration_images=args.calibration_images,
    )
    shown = [part for result in results for part in tables.deployment_tables(result)]
    finish(args, facts, {"models": results}, shown)
    return 0
