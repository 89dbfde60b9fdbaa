"""`codtdq bench kernels`, `latency`, `storage` and `deployment`: speed, memory and bytes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codtdq.cli.common import print_json, verb
from codtdq.errors import ConfigError
from codtdq.io import write_json
from codtdq.lab.commands import bench_gpu
from codtdq.lab.commands import bench_speed_tables as tables
from codtdq.lab.commands.options import model_file, positive, positive_numbers, words

DEFAULT_METHODS = ["w4a4", "dstg-only", "cod-tdq"]
SMALL = "cfrn-small"
PROCESSES, SECONDS = 3, 30.0  # of `latency`


def register(kinds: Any) -> None:
    """Add the kinds."""
    _register_kernels(kinds)
    _register_latency(kinds)
    _register_storage(kinds)
    _register_deployment(kinds)


def _register_kernels(kinds: Any) -> None:
    parser = _kind(
        kinds,
        "kernels",
        "time single operators of the native engine against torch FP32",
        ["", "--only linear --threads 1", "--seconds 5 --format markdown"],
    )
    parser.add_argument(
        "--only",
        type=words,
        metavar="K,..",
        help="quantizer, quantizer-reference, linear, conv (default all)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="at most N shapes of a kind")
    _add_measuring(parser, seconds=2.0, per="shape and thread count")
    parser.set_defaults(run=run_kernels)


def _register_latency(kinds: Any) -> None:
    parser = _kind(
        kinds,
        "latency",
        "time whole networks: native methods and other runtimes against FP32",
        [
            "--model cfrn-small",
            "--model cfrn --untrained --batch 1,4 --memory --first-mask",
            "--model escnet --untrained --compare torch.compile,onnxruntime,openvino --profile",
            "--backend triton",
        ],
    )
    _add_network(parser, default=None)
    bench_gpu.add_options(parser)
    parser.add_argument(
        "--methods",
        type=words,
        metavar="P,..",
        help="any of `codtdq list methods`, beside fp32; what the engine does not take is "
        f"simulated and its row says so (default {','.join(DEFAULT_METHODS)})",
    )
    parser.add_argument("--batch", type=positive_numbers, metavar="N,..", help="default 1")
    parser.add_argument(
        "--compare",
        type=words,
        default=[],
        metavar="R,..",
        help="channels-last, torch.compile, onnxruntime, onnxruntime-int8, "
        "openvino (the last three need the extra `compare`)",
    )
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
    _add_measuring(parser, seconds=SECONDS, per="batch size and thread count")
    parser.set_defaults(run=run_latency, seconds=None)


def _register_storage(kinds: Any) -> None:
    parser = _kind(
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
    _add_network(parser)
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
    _add_output(parser)
    parser.set_defaults(run=run_storage)


def _register_deployment(kinds: Any) -> None:
    parser = _kind(
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
    _add_measuring(parser, seconds=60.0, per="model", one_thread_count=True)
    parser.set_defaults(run=run_deployment)


def _kind(kinds: Any, name: str, help_text: str, examples: Sequence[str]) -> Any:
    return verb(kinds, name, help_text, examples, program="codtdq bench")


def _add_network(parser: argparse.ArgumentParser, default: str | None = SMALL) -> None:
    parser.add_argument(
        "--model", default=default, metavar="M", help=f"registered name (default {SMALL})"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="released weights of the model")
    parser.add_argument(
        "--untrained", action="store_true", help="accept random weights: the speed is the same"
    )


def _add_measuring(
    parser: argparse.ArgumentParser, *, seconds: float, per: str, one_thread_count: bool = False
) -> None:
    if one_thread_count:
        parser.add_argument("--threads", type=positive, metavar="N", help="default: all cores")
    else:
        parser.add_argument(
            "--threads",
            type=positive_numbers,
            metavar="N,..",
            help="default 1,2 as far as there are cores",
        )
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        metavar="S",
        help=f"measuring time per {per} (default {seconds:g})",
    )
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=tables.FORMATS, default="text", help="default text")
    parser.add_argument("--out", metavar="FILE", help="also write everything as JSON")


def run_kernels(args: argparse.Namespace) -> int:
    """Time operators."""
    from codtdq.lab.bench.speed import kernels

    facts = _begin(args)
    result = kernels.run_kernels(
        kinds=args.only or kernels.KINDS,
        threads=_threads(args.threads),
        seconds=args.seconds,
        limit=args.limit,
    )
    _finish(args, facts, result, tables.kernel_tables(result))
    return 0


def run_latency(args: argparse.Namespace) -> int:
    """Time a network on the native engine, or on a GPU."""
    from codtdq.lab.bench.speed import competitors, fresh_process, latency, profile
    from codtdq.lab.bench.speed.subjects import BASELINE, prepared

    bench_gpu.check_options(args)
    if args.backend == "triton":
        bench_gpu.require()  # before anything else: there may be no device
        facts = _begin(args)
        result = bench_gpu.measure(args)
        _finish(args, facts, result, tables.gpu_tables(result))
        return 0
    facts = _begin(args)
    competitors.check(args.compare)  # before minutes of quantizing
    threads = _threads(args.threads)
    fresh = args.memory or args.first_mask
    batches = args.batch or [1]
    with prepared(
        args.model or SMALL,
        args.methods or DEFAULT_METHODS,
        checkpoint=args.checkpoint,
        untrained=args.untrained,
        write_fp32=fresh,
    ) as subjects:
        result = latency.run_latency(
            subjects,
            batches=batches,
            threads=threads,
            compare=args.compare,
            seconds=SECONDS if args.seconds is None else args.seconds,
        )
        result["coverage"] = latency.coverage(subjects)
        if fresh:
            result["processes"] = fresh_process.run_fresh(
                subjects,
                batches=batches if args.memory else [1],
                threads=threads,
                repeats=args.processes or PROCESSES,
                imports=args.imports,
            )
        last = list(subjects.members)[-1]
        if args.profile and last != BASELINE:
            result["profile"] = profile.compare(
                subjects.baseline, subjects.members[last].model, subjects.images(1), threads[-1]
            ) | {"method": last}
    shown = tables.latency_tables(result, memory=args.memory, first_mask=args.first_mask)
    _finish(args, facts, result, shown)
    return 0


def run_storage(args: argparse.Namespace) -> int:
    """Split the bytes."""
    from codtdq.lab.bench.speed.storage import storage_split
    from codtdq.lab.bench.speed.subjects import BASELINE, prepared

    facts = _begin(args)
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
    _finish(args, facts, {"model": name, "splits": splits}, [tables.storage_table(name, splits)])
    return 0


def run_deployment(args: argparse.Namespace) -> int:
    """Measure and print the paper's table for every model."""
    from codtdq.lab.bench.speed.deployment import run_deployment as measure
    from codtdq.lab.bench.speed.machine import cores

    facts = _begin(args)
    threads = _threads([args.threads or cores()])[0]
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
    )
    shown = [part for result in results for part in tables.deployment_tables(result)]
    _finish(args, facts, {"models": results}, shown)
    return 0


def _begin(args: argparse.Namespace) -> dict[str, Any]:
    """Facts about the machine before it gets busy; a file that cannot be written is found now."""
    from codtdq.lab.bench.speed.machine import machine

    if args.out and Path(args.out).is_dir():
        raise ConfigError(f"--out {args.out} is a directory; give the name of a file")
    return machine()


def _finish(
    args: argparse.Namespace,
    facts: dict[str, Any],
    result: dict[str, Any],
    shown: Sequence[tables.Table],
) -> None:
    """Write and print a result with the facts about the machine."""
    document = {"machine": facts, **result}
    if args.out:
        write_json(args.out, document, indent=1)
    if args.json:
        print_json(document)
        return
    print(tables.machine_line(facts))
    print()
    print(tables.render(shown, args.format))
    if args.out:
        print(f"\nwritten to {args.out}")


def _threads(counts: list[int] | None) -> list[int]:
    from codtdq.lab.bench.speed.machine import cores, default_threads
    from codtdq.lab.bench.speed.timing import check_threads

    return default_threads() if counts is None else check_threads(counts, cores())
