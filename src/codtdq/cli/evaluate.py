"""`codtdq eval`: five metrics of a model on a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from codtdq.cli.common import (
    add_calibration,
    add_config,
    add_dataset,
    add_model,
    add_postprocess,
    add_size,
    add_threads,
    add_weights,
    describe,
    opened_dataset,
    opened_model,
    print_json,
    table,
    use_threads,
)
from codtdq.io import write_json

COLUMNS = ("S", "wF", "E_mean", "E_max", "E_adp", "F_mean", "F_max", "F_adp", "MAE")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "",
            "--preset cod-tdq --dataset camosynth/test-easy",
            "--model cfrn --checkpoint cfrn.pth --dataset NC4K --data-root ~/cod --out nc4k.json",
            "--model cfrn-w4a4 --dataset ~/cod/TestDataset/CAMO --resume --out camo.json",
        ],
    )
    add_model(parser)
    add_weights(parser)
    add_size(parser)
    add_config(parser, None)
    add_threads(parser)
    add_calibration(parser)
    add_dataset(parser)
    parser.add_argument("--out", metavar="FILE", help="write a JSON result with provenance")
    parser.add_argument("--resume", action="store_true", help="go on after an interruption")
    parser.add_argument("--batch", type=int, metavar="B", help="images per forward pass")
    add_postprocess(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Evaluate and print one row."""
    from codtdq.errors import ConfigError
    from codtdq.evaluation import evaluate
    from codtdq.evaluation.provenance import execution_of

    if args.resume and not args.out:
        raise ConfigError("--resume needs --out: the state of a run is kept beside its result")
    use_threads(args)
    model = opened_model(args, size=args.size)
    dataset = opened_dataset(args)
    state = f"{args.out}.partial" if args.out else None
    try:
        result = evaluate(
            model,
            dataset,
            batch_size=args.batch,
            postprocess=args.postprocess,
            state_file=state,
            resume=args.resume,
        )
    except KeyboardInterrupt:
        if state is None or not Path(state).exists():
            raise
        raise KeyboardInterrupt(
            f"interrupted; finished images are kept in {state}, the same command with --resume "
            "goes on"
        ) from None
    data = result.to_dict()
    if args.out:
        write_json(args.out, data, indent=1)
    if args.json:
        print_json({k: v for k, v in data.items() if k != "per_image"})
        return
    used = result.provenance["config"]
    row = [args.model, used["name"] if used else "fp32", dataset.name, str(data["count"])]
    scores = [f"{data['metrics'][key]:.4f}" for key in COLUMNS]
    print(table(["model", "setting", "data set", "images", *COLUMNS], [[*row, *scores]]))
    print(f"executed: {execution_of(model)}")
    for note in result.notes:
        print(f"note: {note}")
    if args.out:
        print(f"written to {args.out}")
