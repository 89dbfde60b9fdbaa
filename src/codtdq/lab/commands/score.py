"""`codtdq score`: scores of maps that any network wrote."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from codtdq.cli.common import describe, print_json
from codtdq.io import write_text
from codtdq.lab.commands.options import positive, words

if TYPE_CHECKING:
    from codtdq.lab.score.run import Scored
    from codtdq.lab.score.sources import Sources
    from codtdq.lab.tables.layout import Table

_STYLES = ("paper", "markdown", "csv", "latex")
_SUFFIXES = {"paper": "txt", "markdown": "md", "csv": "csv", "latex": "tex"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "--pred results/SINet/COD10K --gt TestDataset/COD10K",
            "--pred SINet=results/a --pred ours=results/b --gt TestDataset --out scores --curves",
            "--dataset-json datasets.json --method-json methods.json --workers 8 --style latex",
        ],
    )
    parser.add_argument(
        "--pred",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="maps of one method, in a folder per data set if there are several; may be repeated",
    )
    parser.add_argument(
        "--gt",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="masks, a data set (Imgs/GT, Image/GT_Object, im/gt, images/masks) or a folder of "
        "data sets; may be repeated",
    )
    parser.add_argument(
        "--dataset-json",
        action="append",
        default=[],
        metavar="FILE",
        help="data sets in the form of PySODEvalToolkit, instead of --gt",
    )
    parser.add_argument(
        "--method-json",
        action="append",
        default=[],
        metavar="FILE",
        help="methods in the form of PySODEvalToolkit, instead of --pred",
    )
    parser.add_argument("--datasets", type=words, default=[], metavar="A,B", help="only these")
    parser.add_argument("--methods", type=words, default=[], metavar="A,B", help="only these")
    parser.add_argument(
        "--resize", action="store_true", help="bring maps to the size of their mask (bilinear)"
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="leave out masks without a map, with a note"
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="processes (default: as many as there are cores)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write tables, scores per image and finished work here; a second run goes on from it",
    )
    parser.add_argument("--xlsx", action="store_true", help="write scores.xlsx too (extra `score`)")
    parser.add_argument(
        "--curves",
        action="store_true",
        help="write PR, F and E curves of every data set too (extra `figures`)",
    )
    parser.add_argument(
        "--style",
        choices=_STYLES,
        default="paper",
        metavar="S",
        help="paper (aligned text), markdown, csv (full precision) or latex (default paper)",
    )
    parser.add_argument(
        "--metric", type=words, metavar="A,B", help="columns (default: all nine scores)"
    )
    parser.add_argument(
        "--digits", type=int, default=3, metavar="N", help="decimals of scores (default 3)"
    )
    parser.add_argument(
        "--compare", default="S", metavar="M", help="score of paired statistics (default S)"
    )
    parser.add_argument(
        "--reference", metavar="NAME", help="method to compare with (default: the first)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Score, show, write."""
    from codtdq.errors import ConfigError
    from codtdq.lab.score.run import score
    from codtdq.lab.score.tables import COLUMNS, check_metrics, score_table, stats_table
    from codtdq.lab.score.workbook import require_openpyxl

    if not 1 <= args.digits <= 9:
        raise ConfigError(f"--digits is {args.digits}; accepted: 1 to 9")
    metrics = args.metric or list(COLUMNS)
    check_metrics([*metrics, args.compare])
    if (args.xlsx or args.curves) and args.out is None:
        raise ConfigError("--xlsx and --curves write files; say where with --out DIR")
    if args.xlsx:
        require_openpyxl()
    if args.curves:  # figures bring torch along: seconds that scores alone do not need
        from codtdq.lab.figures.style import require_matplotlib

        require_matplotlib()
    sources = _sources(args)
    if args.reference is not None and args.reference not in sources.maps:
        known = ", ".join(sources.maps)
        raise ConfigError(f"--reference {args.reference!r} is no method; accepted: {known}")
    out = None if args.out is None else Path(args.out)
    scored = score(
        sources,
        workers=args.workers or _cores(),
        resize=args.resize,
        allow_missing=args.allow_missing,
        state_dir=None if out is None else out / "state",
    )
    main = score_table(scored, metrics, args.digits)
    stats = stats_table(scored, args.compare, args.reference, args.digits + 1)
    tables = [main] if stats is None else [main, stats]
    if out is not None:
        _write(out, scored, tables, args)
    _show(args, scored, tables)


def _sources(args: argparse.Namespace) -> Sources:
    from codtdq.errors import ConfigError
    from codtdq.lab.score.sources import chosen, of_folders, of_json

    folders, files = bool(args.pred or args.gt), bool(args.dataset_json or args.method_json)
    if folders == files:
        raise ConfigError("give --pred and --gt, or --dataset-json and --method-json")
    if folders and not (args.pred and args.gt):
        raise ConfigError("--pred and --gt go together: maps are scored against masks")
    if files and not (args.dataset_json and args.method_json):
        raise ConfigError("--dataset-json and --method-json go together")
    if files:
        sources = of_json(args.dataset_json, args.method_json)
    else:
        sources = of_folders(args.pred, args.gt)
    return chosen(sources, datasets=args.datasets, methods=args.methods)


def _write(out: Path, scored: Scored, tables: list[Table], args: argparse.Namespace) -> None:
    """Tables in every style, scores per image, and what else was asked for."""
    from codtdq.lab.csvtable import csv_table
    from codtdq.lab.score.tables import per_image_records
    from codtdq.lab.score.workbook import write_workbook
    from codtdq.lab.tables import render_tables

    for table in tables:
        for style, suffix in _SUFFIXES.items():
            write_text(out / f"{table.kind}.{suffix}", render_tables([table], style))
    csv_table(per_image_records(scored), out / "per_image.csv")
    if args.xlsx:
        write_workbook(out / "scores.xlsx", scored, tables)
    if args.curves:
        from codtdq.lab.figures.files import save_figure
        from codtdq.lab.score.figure import curves_figure

        for dataset in scored.datasets:
            figure = curves_figure(scored, dataset)
            for form in ("png", "svg"):
                save_figure(figure, out / f"curves-{quote(dataset, safe=' ')}.{form}")


def _show(args: argparse.Namespace, scored: Scored, tables: list[Table]) -> None:
    from codtdq.lab.tables import render_tables

    if args.json:
        print_json(
            {
                "results": tables[0].records,
                "statistics": tables[1].records if len(tables) > 1 else [],
                "resumed": scored.resumed,
                "notes": scored.notes,
            }
        )
        return
    shown = tables[:1] if args.style == "csv" else tables  # csv holds one kind of table
    width = shutil.get_terminal_size((140, 24)).columns
    sys.stdout.write(render_tables(shown, args.style, width=width, ansi=sys.stdout.isatty()))
    if args.out and args.style == "paper":
        resumed = f"; {scored.resumed} maps were scored before" if scored.resumed else ""
        print(f"\nwritten to {args.out}{resumed}")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
