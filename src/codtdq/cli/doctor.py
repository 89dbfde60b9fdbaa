"""`codtdq doctor`: what is installed and what works here."""

from __future__ import annotations

import argparse

from codtdq.cli.common import describe, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(parser, ["", "--json"])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the facts."""
    from codtdq.doctor import examine

    facts = examine()
    if args.json:
        print_json(facts)
        return
    width = max(len(key) for part in facts.values() for key in part)
    for title, part in facts.items():
        print(title)
        for key, value in part.items():
            print(f"  {key.ljust(width)}  {value}")
