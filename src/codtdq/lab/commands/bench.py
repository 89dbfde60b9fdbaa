"""`codtdq bench`: measure methods under one protocol."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from codtdq.budgets import HELP as BUDGET_HELP
from codtdq.cli.common import add_calibration, print_json, refuse_option, table, verb
from codtdq.lab.commands import bench_model, bench_speed
from codtdq.lab.commands.options import model_file, whole_numbers, words


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the kinds."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    _register_accuracy(kinds)
    bench_speed.register(kinds)
    bench_model.register(kinds)


def _register_accuracy(kinds: Any) -> None:
    parser = verb(
        kinds,
        "accuracy",
        "score methods on models and data sets, one row per cell",
        [
            "--out runs/all",
            "--models cfrn-small --methods fp32,w4a4,cod-tdq --limit 50 --out r",
            "--models cfrn --checkpoint cfrn=cfrn.pth --dataset CAMO --data-root ~/cod --out r",
            "--out runs/all --resume --engine ray --address 10.0.0.1:6379",
        ],
        program="codtdq bench",
    )
    lists = parser.add_argument_group("the grid (comma-separated)")
    lists.add_argument(
        "--models", type=words, metavar="M,..", help="default cfrn-small,escnet-small"
    )
    lists.add_argument(
        "--methods",
        type=words,
        default=["all"],
        metavar="P,..",
        help="see `codtdq list methods` (default all)",
    )
    lists.add_argument(
        "--dataset",
        metavar="NAME[,NAME]",
        help="a row each (default camosynth: its four test splits)",
    )
    refuse_option(parser, "--datasets", "use --dataset NAME[,NAME]")
    lists.add_argument("--seeds", type=whole_numbers, default=[0], metavar="N,..", help="default 0")
    lists.add_argument(
        "--stress",
        type=words,
        default=["none"],
        metavar="S,..",
        help="none, outliers planted in the float model (default none)",
    )
    lists.add_argument("--budget", default="fast", metavar="B", help=BUDGET_HELP)
    lists.add_argument("--limit", type=int, metavar="N", help="at most N images per data set")
    parser.add_argument("--out", required=True, metavar="DIR", help="where results.jsonl goes")
    parser.add_argument(
        "--resume", action="store_true", help="skip finished cells, try failed ones again"
    )
    parser.add_argument(
        "--engine", default="local", metavar="E", help="local or ray (default local)"
    )
    parser.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster that is running")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: cores)")
    add_calibration(parser)
    parser.add_argument(
        "--checkpoint",
        type=model_file,
        action="append",
        default=[],
        metavar="MODEL=FILE",
        help="released weights of a model; may be repeated",
    )
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="accept random weights where none are shipped or given",
    )
    parser.add_argument(
        "--keep-models", action="store_true", help="keep the quantized models in DIR/state"
    )
    parser.set_defaults(run=run_accuracy)


def run_accuracy(args: argparse.Namespace) -> int:
    """Run the grid and print its table; exit code 1 if a cell failed."""
    from codtdq.data.datasets import split_names
    from codtdq.evaluation.calibration import CALIBRATION_IMAGES
    from codtdq.lab import bench
    from codtdq.lab.bench.accuracy import DEFAULT_DATASETS, DEFAULT_MODELS
    from codtdq.resolve import CALIBRATION_SPLIT

    count = CALIBRATION_IMAGES if args.calibration_images is None else args.calibration_images
    try:
        rows = bench.run_accuracy(
            args.out,
            models=args.models or DEFAULT_MODELS,
            methods=args.methods,
            datasets=split_names(args.dataset) if args.dataset else DEFAULT_DATASETS,
            data_root=args.data_root,
            limit=args.limit,
            seeds=args.seeds,
            stress=args.stress,
            budget=args.budget,
            resume=args.resume,
            engine=args.engine,
            address=args.address,
            workers=args.workers,
            calibration=args.calibration or CALIBRATION_SPLIT,
            calibration_images=count,
            checkpoints=dict(args.checkpoint),
            untrained=args.untrained,
            imports=args.imports,
            keep_models=args.keep_models,
        )
    except KeyboardInterrupt:
        print(
            f"codtdq bench: interrupted; finished cells are kept in {args.out}/results.jsonl, "
            "the same command with --resume goes on",
            file=sys.stderr,
        )
        return 130
    failed = [row for row in rows if row["status"] != "ok"]
    if args.json:
        print_json([{k: v for k, v in row.items() if k != "per_image"} for row in rows])
    else:
        print(_table(rows))
        for note in dict.fromkeys(note for row in rows for note in row.get("notes") or ()):
            print(f"note: {note}")
        print(f"written to {args.out}/results.jsonl")
    if failed:
        print(
            f"codtdq bench: {len(failed)} of {len(rows)} cells failed, the first with: "
            f"{failed[0]['error']} (--resume tries them again)",
            file=sys.stderr,
        )
    return 1 if failed else 0


def _table(rows: list[dict[str, Any]]) -> str:
    from codtdq.lab.tables import COLUMNS

    header = ["model", "method", "data set", "seed", "stress", "images", *COLUMNS]
    lines = []
    for row in rows:
        name = [row["model"], row["method"], row["dataset"], str(row["seed"]), row["stress"] or "-"]
        if row["status"] == "ok":
            scores = [f"{row['metrics'][key]:.4f}" for key in COLUMNS]
            lines.append([*name, str(row["count"]), *scores])
        else:
            lines.append([*name, "failed", *("-" for _ in COLUMNS)])
    return table(header, lines)
