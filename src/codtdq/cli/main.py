"""Dispatch, and the one place where errors become one line and an exit code.

Exit codes: 0 done, 2 wrong usage or unusable input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from codtdq._version import __version__
from codtdq.cli.common import Terminated
from codtdq.cli.registry import COMMANDS, Verbs
from codtdq.errors import CodtdqError
from codtdq.importing import import_file
from codtdq.printing import printable


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="codtdq",
        description="4-bit post-training quantization for camouflaged object detection",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE",
        help="run a Python file first, e.g. one that registers a model of your own",
    )
    parser.add_argument("--version", action="version", version=f"codtdq {__version__}")
    verbs = parser.add_subparsers(action=Verbs, dest="verb", metavar="VERB", required=True)
    assert isinstance(verbs, Verbs)
    for command in COMMANDS:
        verbs.add_command(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = build_parser().parse_args(argv)
    args.words = list(sys.argv[1:] if argv is None else argv)  # for results that say their command
    run: Callable[[argparse.Namespace], int | None] = args.run
    if argv is None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        for file in args.imports:
            import_file(file)
        if argv is None:  # the process is this command's own
            from codtdq.native import keep_memory  # of the engine, without torch

            keep_memory(_kept_memory(args))
        return run(args) or 0
    except CodtdqError as error:
        return _fail(args.verb, " ".join(str(error).split()), 2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone: `codtdq ... | head` is no error
        return 0
    except OSError as error:
        what = error.strerror or str(error)
        where = f"{error.filename}: " if error.filename else ""
        return _fail(args.verb, f"{where}{what}", 2)
    except KeyboardInterrupt as stop:  # a verb that keeps something says so
        return _fail(args.verb, str(stop) or "interrupted; nothing is kept", 130)
    except Terminated:
        return _fail(args.verb, "terminated; finished work is kept", 128 + signal.SIGTERM)


def _kept_memory(args: argparse.Namespace) -> int:
    """Freed bytes that the process keeps: many for speed, few where it calibrates.

    Calibration has large tensors of many sizes, and the holes between them would double its memory.
    """
    calibrates = args.verb == "quantize" or getattr(args, "method", None) is not None
    return 4 << 20 if calibrates else 1 << 30


def _fail(verb: str, message: str, code: int) -> int:
    print(f"codtdq {verb}: error: {printable(message)}", file=sys.stderr)
    return code
