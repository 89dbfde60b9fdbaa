"""`codtdq table`: the results of a benchmark in the layout of the paper's tables."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from codtdq.cli.common import verb
from codtdq.io import write_text

_KINDS = ("all", "main", "ablation", "bits", "gain", "stats")
_STYLES = ("paper", "markdown", "csv", "latex")


def register(verbs: Any) -> None:
    """Add the verb."""
    parser = verb(
        verbs,
        "table",
        "show benchmark results as the tables of the paper",
        [
            "runs/bench",
            "runs/bench/results.jsonl --table main --style latex --out main.tex",
            "runs/a runs/b --table stats --metric S,MAE",
            "runs/bench --table main --style csv",
        ],
    )
    parser.add_argument("results", nargs="+", help="results.jsonl, or the folder of a run")
    parser.add_argument(
        "--table",
        choices=_KINDS,
        metavar="T",
        help=f"{', '.join(_KINDS)} (default: all that the results can fill; for csv main)",
    )
    parser.add_argument(
        "--style",
        choices=_STYLES,
        default="paper",
        metavar="S",
        help="paper (aligned text), markdown, csv (full precision) or latex (default paper)",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="M",
        help="columns, several with commas (default S,wF,E_mean,F_mean,MAE; F_max beside the "
        "paper's numbers, as its text defines them)",
    )
    parser.add_argument(
        "--with-published",
        action="store_true",
        help="the paper's own numbers beside ours; refused for other models or data",
    )
    parser.add_argument("--digits", type=int, default=3, metavar="N", help="decimals (default 3)")
    parser.add_argument(
        "--width", type=int, metavar="N", help="break aligned text here (default: the terminal)"
    )
    parser.add_argument("--out", metavar="FILE", help="write to a file instead of the terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, build, render, print or write."""
    from codtdq.errors import ConfigError
    from codtdq.lab.tables import build_tables, read_results, render_tables, tables_to_dict

    if not 1 <= args.digits <= 9:
        raise ConfigError(f"--digits is {args.digits}; accepted: 1 to 9")
    metrics = [name for part in args.metric for name in part.replace(",", " ").split()]
    kind = args.table or ("main" if args.style == "csv" and not args.json else "all")
    tables = build_tables(
        read_results(args.results),
        kind,
        metrics=list(dict.fromkeys(metrics)) or None,
        digits=args.digits,
        with_published=args.with_published,
    )
    if args.json:
        text = json.dumps(tables_to_dict(tables), indent=2) + "\n"
    else:
        ansi = sys.stdout.isatty() and not args.out
        width = args.width or shutil.get_terminal_size((140, 24)).columns
        text = render_tables(tables, args.style, width=width, ansi=ansi)
    if args.out:
        write_text(args.out, text)
        print(f"{len(tables)} {'tables' if len(tables) > 1 else 'table'} written to {args.out}")
    else:
        sys.stdout.write(text)
