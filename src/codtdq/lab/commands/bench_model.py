"""`codtdq bench weights` and `operators`: what a method makes of a model, without test images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codtdq.budgets import BUDGETS
from codtdq.budgets import HELP as BUDGET_HELP
from codtdq.cli.common import add_calibration, add_model, add_weights, print_json, verb
from codtdq.errors import ConfigError
from codtdq.io import write_json
from codtdq.lab.commands.options import words

# Rows of the paper's tables of weights, beside FP32.
METHODS = ["w8a8", "w4a8", "w4a4", "cod-tdq", "repq-vit", "igq-vit", "ptq4sam", "fima-q"]


def register(kinds: Any) -> None:
    """Add both kinds."""
    parser = verb(
        kinds,
        "weights",
        "statistics of chosen layers' weights, float and by method",
        [
            "--model cfrn-small",
            "--model cfrn --checkpoint cfrn.pth --layers '*.layers.2.blocks.10.attn.qkv,"
            "*.layers.2.blocks.0.mlp.fc1' --out weights.json",
        ],
        program="codtdq bench",
    )
    add_model(parser, packed=False)
    add_weights(parser)
    parser.add_argument(
        "--methods",
        type=words,
        default=METHODS,
        metavar="P,..",
        help=f"beside fp32 (default {','.join(METHODS)}: the rows of the paper's tables)",
    )
    parser.add_argument(
        "--layers",
        type=words,
        default=[],
        metavar="PATTERN,..",
        help="names of operators, * and ? allowed (default: the largest attention and the largest "
        "MLP weight)",
    )
    add_calibration(parser)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the methods")
    parser.add_argument("--budget", choices=BUDGETS, default="fast", help=BUDGET_HELP)
    parser.add_argument("--out", metavar="FILE", help="also write JSON, for `codtdq table`")
    parser.set_defaults(run=run_weights)
    parser = verb(
        kinds,
        "operators",
        "count the operators of a model by family, and what a method quantizes",
        ["--model cfrn --out operators.json", "--model escnet-small --method w4a4"],
        program="codtdq bench",
    )
    add_model(parser, packed=False)
    parser.add_argument(
        "--method", default="cod-tdq", metavar="P", help="method or preset (default cod-tdq)"
    )
    parser.add_argument("--out", metavar="FILE", help="also write JSON, for `codtdq table`")
    parser.set_defaults(run=run_operators)


def run_weights(args: argparse.Namespace) -> None:
    """Quantize, take the statistics, show them as the paper's tables."""
    from codtdq.lab.bench.weights import run_weights as measure
    from codtdq.models import model_info
    from codtdq.resolve import open_model

    _check(args.out)
    model = open_model(args.model, args.checkpoint, untrained=args.untrained)
    found = measure(
        model,
        args.methods,
        layers=args.layers,
        calibration=args.calibration,
        data_root=args.data_root,
        calibration_images=args.calibration_images,
        seed=args.seed,
        budget=args.budget,
    )
    shipped = "shipped" if model_info(args.model).weights is not None else "random (untrained)"
    weights = f"from {Path(args.checkpoint).name}" if args.checkpoint else shipped
    _finish(args, {**found, "model": args.model, "weights": weights})


def run_operators(args: argparse.Namespace) -> None:
    """Count, and show the inventory. Weights are not needed, only shapes."""
    from codtdq.lab.bench.inventory import run_inventory
    from codtdq.models import build_model

    _check(args.out)
    found = run_inventory(build_model(args.model), args.method)
    _finish(args, {**found, "model": args.model})


def _check(out: str | None) -> None:
    if out and Path(out).is_dir():
        raise ConfigError(f"--out {out} is a directory; give the name of a file")


def _finish(args: argparse.Namespace, document: dict[str, Any]) -> None:
    from codtdq.lab.tables import Documents, Results, build_tables, render_tables

    if args.out:
        write_json(args.out, document, indent=1)
    if args.json:
        print_json(document)
        return
    documents = Documents(**{document["kind"]: [document]})
    print(render_tables(build_tables(Results(()), document["kind"], documents=documents)), end="")
    if args.out:
        print(f"\nwritten to {args.out}")
