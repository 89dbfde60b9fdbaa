"""`codtdq bench latency`: whole networks, ours and other runtimes', by speed and by loss."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codtdq.cli.common import add_size
from codtdq.errors import ConfigError
from codtdq.lab.commands import bench_gpu
from codtdq.lab.commands import bench_speed_tables as tables
from codtdq.lab.commands.bench_speed_latency_tables import latency_tables
from codtdq.lab.commands.bench_speed_options import (
    SMALL,
    add_kind,
    add_measuring,
    add_network,
    begin,
    checked_threads,
    finish,
)
from codtdq.lab.commands.options import positive, positive_numbers, words

DEFAULT_METHODS = ["w4a4", "dstg-only", "cod-tdq"]
DEFAULT_DATASET = "camosynth/val"
PROCESSES, SECONDS = 3, 30.0
CALIBRATION_FOR_SCORES = 32  # images; without scores the values of ranges do not matter
HOLDS = ("avx512-vnni", "avx2")


def register(kinds: Any) -> None:
    """Add the kind."""
    parser = add_kind(
        kinds,
        "latency",
        "time whole networks: native methods and other runtimes against FP32",
        [
            "--model cfrn-small",
            "--model cfrn --untrained --batch 1,4 --memory --first-mask",
            "--model escnet --untrained --compare torch.compile,onnxruntime,openvino --profile",
            "--model cfrn-small --compare all --accuracy 96 --figure tradeoff.png",
            "--model cfrn --untrained --compare openvino-int8 --hold avx512-vnni",
            "--model vit-cod --methods w4a8 --quantized vit-cod-w4a4 --accuracy 40",
            "--model birefnet-lite --untrained --size 512 --memory",
            "--backend triton",
        ],
    )
    add_network(parser, default=None)
    bench_gpu.add_options(parser)
    parser.add_argument(
        "--methods",
        type=words,
        metavar="P,..",
        help="any of `codtdq list methods`, beside fp32; what the engine does not take is "
        f"simulated and its row says so (default {','.join(DEFAULT_METHODS)})",
    )
    parser.add_argument(
        "--quantized",
        type=words,
        default=[],
        metavar="DIR,..",
        help="quantized models of this network that are there already: directories, or names of "
        "those that come with the package",
    )
    parser.add_argument("--batch", type=positive_numbers, metavar="N,..", help="default 1")
    add_size(parser)
    _add_rivals(parser)
    _add_scores(parser)
    parser.add_argument(
        "--profile", action="store_true", help="show where the time goes, for the last method"
    )
    parser.add_argument(
        "--memory", action="store_true", help="peak memory of a process that loads and predicts"
    )
    parser.add_argument(
        "--first-mask",
        action="store_true",
        help="time from the start of a process to its first mask",
    )
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help=f"per --memory and --first-mask figure (default {PROCESSES})",
    )
    add_measuring(parser, seconds=SECONDS, per="batch size and thread count")
    parser.set_defaults(run=run_latency, seconds=None)


def _add_rivals(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("other runtimes")
    group.add_argument(
        "--compare",
        type=words,
        default=[],
        metavar="R,..",
        help="all, or any of torch (the row fp32, always there), torch-bf16, torch.compile, "
        "channels-last, onnxruntime, onnxruntime-int8, openvino, openvino-f32, openvino-int8, "
        "openvino-int8-bf16; those of ONNX Runtime and OpenVINO need the extra `compare`",
    )
    group.add_argument(
        "--hold",
        choices=HOLDS,
        help="measure in a fresh process in which everybody is held to this instruction set, "
        "each by its own switch; the output says who could not be held",
    )


def _add_scores(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("loss beside speed")
    group.add_argument(
        "--accuracy",
        type=positive,
        metavar="N",
        help="score every candidate on the first N images: S, MAE, mean |p - p_fp32|",
    )
    group.add_argument(
        "--dataset",
        metavar="NAME",
        help=f"whose images --accuracy takes (default {DEFAULT_DATASET})",
    )
    group.add_argument("--data-root", metavar="DIR", help="folder that holds the benchmark sets")
    group.add_argument(
        "--calibration",
        metavar="NAME",
        help="data set or folder of images for our methods and for NNCF (default camosynth/calib)",
    )
    group.add_argument(
        "--calibration-images",
        type=positive,
        metavar="N",
        help=f"how many of its images (default 4, with --accuracy {CALIBRATION_FOR_SCORES})",
    )
    group.add_argument(
        "--figure",
        metavar="FILE",
        help="draw speed against S (without --accuracy: against the distance from FP32), "
        ".png or .svg",
    )


def run_latency(args: argparse.Namespace) -> int:
    """Time a network on the native engine, or on a GPU."""
    bench_gpu.check_options(args)
    if args.backend == "triton":
        bench_gpu.require()  # before anything else: there may be no device
        facts = begin(args)
        result = bench_gpu.measure(args)
        finish(args, facts, result, tables.gpu_tables(result))
        return 0
    from codtdq.lab.bench.speed import competitors, hold

    _check_outputs(args)
    competitors.check(args.compare)  # before minutes of quantizing
    if args.hold is not None and not hold.is_held(args.hold):
        return hold.run_held(args.words, args.hold)
    facts = begin(args)
    result = _measure(args)
    finish(
        args, facts, result, latency_tables(result, memory=args.memory, first_mask=args.first_mask)
    )
    if args.figure:
        _draw(args, result)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Find before the measurement what would spoil its end."""
    if args.dataset and not args.accuracy:
        raise ConfigError("--dataset does nothing without --accuracy N; leave it out")
    if args.figure:
        from codtdq.lab.figures.files import FORMATS
        from codtdq.lab.figures.style import require_matplotlib

        if Path(args.figure).suffix.removeprefix(".") not in FORMATS:
            raise ConfigError(
                f"--figure {args.figure}: accepted: a name that ends in .{' or .'.join(FORMATS)}"
            )
        require_matplotlib()


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    from codtdq.data import open_dataset
    from codtdq.lab.bench.speed import accuracy, fresh_process, latency, profile
    from codtdq.lab.bench.speed.subjects import BASELINE, CALIBRATION_IMAGES, is_trained, prepared
    from codtdq.resolve import CALIBRATION_SPLIT

    threads = checked_threads(args.threads)
    model = args.model or SMALL
    fresh = args.memory or args.first_mask
    batches = args.batch or [1]
    scored = None
    if args.accuracy:
        accuracy.require_trained(model, is_trained(model, args.checkpoint))
        scored = open_dataset(args.dataset or DEFAULT_DATASET, args.data_root, limit=args.accuracy)
    usual = CALIBRATION_FOR_SCORES if args.accuracy else CALIBRATION_IMAGES
    with prepared(
        model,
        args.methods or DEFAULT_METHODS,
        quantized=args.quantized,
        checkpoint=args.checkpoint,
        untrained=args.untrained,
        write_fp32=True,
        calibration=args.calibration or CALIBRATION_SPLIT,
        data_root=args.data_root,
        calibration_images=args.calibration_images or usual,
        size=args.size,
    ) as subjects:
        result = latency.run_latency(
            subjects,
            batches=batches,
            threads=threads,
            compare=args.compare,
            seconds=SECONDS if args.seconds is None else args.seconds,
            accuracy=scored,
        )
        if args.hold:
            _add_holding(args.hold, result)
        result["coverage"] = latency.coverage(subjects)
        if fresh:
            result["processes"] = fresh_process.run_fresh(
                subjects,
                batches=batches if args.memory else [1],
                threads=threads,
                repeats=args.processes or PROCESSES,
                imports=args.imports,
                programs=True,
            )
        last = list(subjects.members)[-1]
        if args.profile and last != BASELINE:
            result["profile"] = profile.compare(
                subjects.baseline, subjects.members[last].model, subjects.images(1), threads[-1]
            ) | {"method": last}
    return result


def _add_holding(name: str, result: dict[str, Any]) -> None:
    """Say in every row, and for every library, whether it kept to the instruction set."""
    from codtdq.lab.bench.speed import hold_check
    from codtdq.lab.bench.speed.competitors import COMPETITORS

    rows = result["rows"]
    measured = [row for row in rows if "skipped" not in row]
    families = {
        row["candidate"]: COMPETITORS[row["candidate"]].family
        for row in measured
        if row["candidate"] in COMPETITORS
    }
    found = hold_check.check_families(sorted({"torch", *families.values()}), name)
    for row in measured:
        # our methods run on the engine, which refuses a set that it cannot keep to
        native = row["execution"].startswith("native")
        kept = native or found[families.get(row["candidate"], "torch")]["held"]
        row["held"] = name if kept else "not held"
    result["held"] = {"set": name, "families": found}


def _draw(args: argparse.Namespace, result: dict[str, Any]) -> None:
    from codtdq.lab.figures.files import save_figure
    from codtdq.lab.figures.tradeoff import tradeoff

    path = save_figure(tradeoff(result), args.figure)
    if not args.json:
        print(f"figure written to {path}")
