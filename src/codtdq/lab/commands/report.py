"""`codtdq report`: the results of a benchmark as one page for a browser."""

from __future__ import annotations

import argparse

from codtdq.cli.common import command_of, describe, print_json
from codtdq.io import write_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(parser, ["runs/bench", "runs/a/results.jsonl runs/b --out both.html"])
    parser.add_argument("results", nargs="+", help="results.jsonl, or the folder of a run")
    parser.add_argument(
        "--out",
        default="report.html",
        metavar="FILE",
        help="where the page goes (default report.html)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, build, write."""
    from codtdq.lab.pages import benchmark_page
    from codtdq.lab.tables import read_results

    results = read_results(args.results)
    text = benchmark_page(results, command_of(args), ", ".join(args.results))
    write_text(args.out, text)
    if args.json:
        print_json({"out": args.out, "cells": len(results.rows), "bytes": len(text.encode())})
    else:
        print(f"{len(results.rows)} cells written to {args.out}; open it in a browser")
