"""`codtdq export-synth`: write synthetic scenes as files."""

from __future__ import annotations

import argparse

from codtdq.cli.common import describe, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        ["--split test-easy --count 50 --out synth", "--split val --count 99 --size 384 --out s"],
    )
    parser.add_argument("--split", default="test-easy", help="camosynth split (default test-easy)")
    parser.add_argument("--count", "--limit", type=int, default=16, metavar="N", help="images")
    parser.add_argument("--size", type=int, default=192, help="side in pixels (default 192)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Export and say how much was written."""
    from codtdq.data import export_synth

    written = export_synth(args.split, args.out, args.count, args.size)
    if args.json:
        print_json({"out": args.out, "files": [str(path) for path in written]})
    else:
        print(
            f"{args.count} synthetic images of {args.split} and their masks written to {args.out}"
        )
