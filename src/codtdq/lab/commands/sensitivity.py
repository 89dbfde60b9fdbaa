"""`codtdq sensitivity`: which layers or roles a setting harms, and a config that spares them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from codtdq.cli.common import (
    add_calibration,
    add_dataset,
    add_method,
    add_model,
    add_weights,
    describe,
    opened_dataset,
    print_json,
    table,
)
from codtdq.errors import ConfigError
from codtdq.io import write_json

if TYPE_CHECKING:
    from codtdq.lab.diagnosis.protection import Proposal
    from codtdq.lab.diagnosis.sensitivity import Sensitivity

DEFAULT_SETTING = "cod-tdq"
IMAGES = 8  # per state of the model; there are two for every operator
SHOWN = 15  # rows of the table; --json has all


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "--method w4a4 --by role --limit 8",
            "--method w4a4 --limit 8 --budget 0.01 --out spared.json",
        ],
    )
    add_model(parser, packed=False)
    add_weights(parser)
    add_method(parser, f"variant of the paper's method (default {DEFAULT_SETTING})")
    parser.add_argument("--config", metavar="FILE", help="JSON file of CodTdqConfig fields instead")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=JSON",
        help="change one field of the setting",
    )
    parser.add_argument(
        "--by",
        choices=["layer", "role"],
        default="layer",
        help="what is switched at a time (default layer)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="X", help="propose a config whose S drops by at most X"
    )
    add_dataset(parser, limit=IMAGES)
    add_calibration(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the proposal as a config file for `codtdq quantize --config` "
        "(budget 0.005 unless given)",
    )
    parser.add_argument("--resume", action="store_true", help="go on after an interruption")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, propose, print."""
    from codtdq.evaluation.provenance import model_hash
    from codtdq.lab.diagnosis.protection import check_budget, propose
    from codtdq.lab.diagnosis.rowfile import RowFile
    from codtdq.lab.diagnosis.sensitivity import SensitivityRow, measure_sensitivity, metric_scorer
    from codtdq.planning import PRESETS, CodTdqConfig
    from codtdq.resolve import calibration_for, open_config, open_model

    if args.resume and not args.out:
        raise ConfigError("--resume needs --out: the state of a run is kept beside its result")
    budget = 0.005 if args.budget is None and args.out else args.budget
    if budget is not None:
        check_budget(budget)  # before minutes of measurement
    model = open_model(args.model, args.checkpoint, untrained=args.untrained)
    config = open_config(
        model, name=args.method, file=args.config, changes=args.set, default=DEFAULT_SETTING
    )
    if not isinstance(config, CodTdqConfig):
        raise ConfigError(
            f"the setting is a {type(config).__name__}; sensitivity switches operators one by one, "
            f"which needs a variant of the paper's method: {', '.join(PRESETS)}"
        )
    data = opened_dataset(args)
    calibration = calibration_for(
        model, config, args.calibration, args.data_root, args.calibration_images
    )
    rows = None
    if args.out:
        key = {
            "model": model_hash(model),
            "config": config.to_dict(),
            "by": args.by,
            "dataset": data.name,
            "images": len(data),
        }
        rows = RowFile(f"{args.out}.partial", key, resume=args.resume)
    score = metric_scorer(data)
    try:
        result = measure_sensitivity(
            model,
            config,
            score,
            by=args.by,
            calibration=calibration,
            done=[SensitivityRow.from_dict(row) for row in rows.rows] if rows else (),
            on_row=(lambda row: rows.append(row.to_dict())) if rows else None,
        )
        proposal = None
        if budget is not None:
            proposal = propose(model, config, result, score, budget=budget, calibration=calibration)
    except KeyboardInterrupt:
        if rows is None or not rows.rows:
            raise
        raise KeyboardInterrupt(
            f"interrupted; {len(rows.rows)} rows are kept in {rows.path}, the same command with "
            "--resume goes on"
        ) from None
    if args.out and proposal is not None and rows is not None:
        write_json(args.out, proposal.config.to_dict(), indent=1)
        rows.discard()
    if args.json:
        print_json(
            {
                "model": args.model,
                "dataset": data.name,
                "images": len(data),
                **result.to_dict(),
                "proposal": proposal.to_dict() if proposal else None,
            }
        )
        return
    print(_text(args, result, proposal, f"{data.name}, {len(data)} images"))


def _text(
    args: argparse.Namespace, result: Sensitivity, proposal: Proposal | None, data: str
) -> str:
    by_layer = args.by == "layer"
    rows = [
        [
            row.unit,
            row.role if by_layer else str(len(row.operators)),
            f"{row.drop:+.4f}",
            f"{row.gain:+.4f}",
            f"{row.harm:+.4f}",
        ]
        for row in result.rows[:SHOWN]
    ]
    second = "role" if by_layer else "operators"
    lines = [
        f"{args.model}, {result.setting}, {data}: S {result.float_score:.4f} with every operator "
        f"float, {result.quantized_score:.4f} with every operator quantized",
        "",
        table([args.by, second, "drop alone", "gain if float", "harm"], rows),
    ]
    left = len(result.rows) - len(rows)
    if left:
        lines.append(f"... and {left} less harmful (--json has all)")
    if proposal is not None:
        lines += ["", _proposal_text(proposal)]
        if args.out:
            lines.append(f"config written to {args.out}")
    return "\n".join(lines)


def _proposal_text(proposal: Proposal) -> str:
    met = "within" if proposal.met else "NOT within"
    skipped, eight = ", ".join(proposal.skipped) or "none", ", ".join(proposal.eight) or "none"
    return (
        f"proposal: S {proposal.score:.4f}, a drop of {proposal.drop:.4f}, {met} the budget of "
        f"{proposal.budget:g} ({proposal.evaluations} configs were quantized and scored)\n"
        f"  stay float      {skipped}\n"
        f"  8-bit inputs    {eight}"
    )
