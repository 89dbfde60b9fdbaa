"""What the speed benchmarks share: options of a network and of a measurement, and their output."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codtdq.cli.common import print_json, verb
from codtdq.errors import ConfigError
from codtdq.io import write_json
from codtdq.lab.commands import bench_speed_tables as tables
from codtdq.lab.commands.options import positive, positive_numbers

SMALL = "cfrn-small"


def add_kind(kinds: Any, name: str, help_text: str, examples: Sequence[str]) -> Any:
    """Add a kind of `codtdq bench`."""
    return verb(kinds, name, help_text, examples, program="codtdq bench")


def add_network(parser: argparse.ArgumentParser, default: str | None = SMALL) -> None:
    """`--model`, `--checkpoint`, `--untrained`."""
    parser.add_argument(
        "--model", default=default, metavar="M", help=f"registered name (default {SMALL})"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="released weights of the model")
    parser.add_argument(
        "--untrained", action="store_true", help="accept random weights: the speed is the same"
    )


def add_measuring(
    parser: argparse.ArgumentParser, *, seconds: float, per: str, one_thread_count: bool = False
) -> None:
    """`--threads`, `--seconds`, and the output."""
    if one_thread_count:
        parser.add_argument("--threads", type=positive, metavar="N", help="default: all cores")
    else:
        parser.add_argument(
            "--threads",
            type=positive_numbers,
            metavar="N,..",
            help="default 1,2 as far as there are cores",
        )
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        metavar="S",
        help=f"measuring time per {per} (default {seconds:g})",
    )
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """`--format` and `--out`."""
    parser.add_argument("--format", choices=tables.FORMATS, default="text", help="default text")
    parser.add_argument("--out", metavar="FILE", help="also write everything as JSON")


def begin(args: argparse.Namespace) -> dict[str, Any]:
    """Facts about the machine before it gets busy; a file that cannot be written is found now."""
    from codtdq.lab.bench.speed.machine import machine

    if args.out and Path(args.out).is_dir():
        raise ConfigError(f"--out {args.out} is a directory; give the name of a file")
    return machine()


def finish(
    args: argparse.Namespace,
    facts: dict[str, Any],
    result: dict[str, Any],
    shown: Sequence[tables.Table],
) -> None:
    """Write and print a result with the facts about the machine."""
    document = {"machine": facts, **result}
    if args.out:
        write_json(args.out, document, indent=1)
    if args.json:
        print_json(document)
        return
    print(tables.machine_line(facts))
    print()
    print(tables.render(shown, args.format))
    if args.out:
        print(f"\nwritten to {args.out}")


def checked_threads(counts: list[int] | None) -> list[int]:
    """Return the thread counts to measure; more than there are cores are refused."""
    from codtdq.lab.bench.speed.machine import cores, default_threads
    from codtdq.lab.bench.speed.timing import check_threads

    return default_threads() if counts is None else check_threads(counts, cores())
