"""`codtdq train`: train a registered model from scratch or from a checkpoint."""

from __future__ import annotations

import argparse
import datetime

from codtdq.cli.common import describe, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from codtdq.lab.training.command import add_train_arguments

    describe(
        parser,
        [
            "--out runs/first",
            "--model escnet-small --out e --source camosynth:2 --source pairs:CAMO --holdout 100",
            "--out runs/first --resume",
        ],
    )
    add_train_arguments(parser)
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="at the end, write the averaged weights (fp16 safetensors) and a model card",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train and print where the run stands."""
    from codtdq.lab.training.command import exit_code, run_train, summary

    result = run_train(args)
    if args.export:
        from codtdq.lab.training import export

        export(result.out_dir, args.export, date=datetime.date.today().isoformat())
    if args.json:
        print_json(
            {
                "out": str(result.out_dir),
                "step": result.step,
                "steps": result.steps,
                "stopped_by": result.stopped_by,
                "scores": result.scores,
            }
        )
    else:
        print(summary(result))
    return exit_code(result)
