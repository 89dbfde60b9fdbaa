"""`codtdq table`: the results of a benchmark in the layout of the paper's tables."""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from codtdq.cli.common import describe
from codtdq.io import write_text

_KINDS = (
    "all",
    "main",
    "escnet",
    "ablation",
    "bits",
    "gain",
    "stats",
    "runtime",
    "storage",
    "weights",
    "operators",
    "variants",
)
_STYLES = ("paper", "markdown", "csv", "latex")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "runs/bench",
            "runs/bench/results.jsonl --table main --style latex --out main.tex",
            "runs/a runs/b --table stats --metric S,MAE",
            "runs/bench --table main --style csv",
            "runtime.json --table runtime --with-published",
            "--table variants --style markdown",
        ],
    )
    parser.add_argument(
        "results",
        nargs="*",
        help="results.jsonl, or the folder of a run; for runtime, storage, weights and operators "
        "the .json file that `codtdq bench latency`, `deployment`, `storage`, `weights` or "
        "`operators` wrote with --out; variants needs none",
    )
    parser.add_argument(
        "--table",
        choices=_KINDS,
        metavar="T",
        help=f"{', '.join(_KINDS)} (default: all that the results can fill; for csv the first)",
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
        help="columns, several with commas (default S,wF,E_mean,F_max,MAE: F_max is the paper's F)",
    )
    parser.add_argument(
        "--with-published",
        action="store_true",
        help="the paper's own numbers beside ours; refused for other models or data",
    )
    parser.add_argument(
        "--digits", type=int, metavar="N", help="decimals of scores (default 3, of escnet 4)"
    )
    parser.add_argument(
        "--width", type=int, metavar="N", help="break aligned text here (default: the terminal)"
    )
    parser.add_argument("--out", metavar="FILE", help="write to a file instead of the terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, build, render, print or write."""
    from codtdq.errors import ConfigError
    from codtdq.lab.tables import (
        Results,
        build_tables,
        is_document,
        read_documents,
        read_results,
        render_tables,
        tables_to_dict,
    )

    if args.digits is not None and not 1 <= args.digits <= 9:
        raise ConfigError(f"--digits is {args.digits}; accepted: 1 to 9")
    if not args.results and args.table != "variants":
        raise ConfigError(
            "no results given; name results.jsonl, the folder of a run or .json files"
        )
    metrics = [name for part in args.metric for name in part.replace(",", " ").split()]
    rows = [path for path in args.results if not is_document(path)]
    documents = read_documents([path for path in args.results if is_document(path)])
    kind = args.table or "all"
    if args.table is None and args.style == "csv" and not args.json:
        kind = "main" if rows else documents.kinds()[0]
    tables = build_tables(
        read_results(rows) if rows else Results(()),
        kind,
        documents=documents,
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
