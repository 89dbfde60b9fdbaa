"""`codtdq serve`: the try-out page in a browser, and its endpoints for programs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading

from codtdq.cli.common import Terminated, add_threads, describe, positive, use_threads

PHOTOGRAPHS = "vit-cod"  # the network that knows photographs; its quantized file is at hand
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(parser, ["", "--port 9000 --model escnet-small", "--host 0.0.0.0 --queue 2"])
    parser.add_argument(
        "--model",
        default=PHOTOGRAPHS,
        metavar="M",
        help=f"registered name with weights (default {PHOTOGRAPHS})",
    )
    parser.add_argument(
        "--host",
        default=LOOPBACK[0],
        metavar="ADDRESS",
        help="address to listen on (default 127.0.0.1: this machine only)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="port (default 8000; 0: any free one)"
    )
    parser.add_argument(
        "--queue", type=positive, default=8, metavar="N", help="pictures that may wait (default 8)"
    )
    parser.add_argument(
        "--max-mib",
        type=positive,
        default=16,
        metavar="N",
        help="largest upload in MiB (default 16)",
    )
    parser.add_argument(
        "--max-megapixels",
        type=positive,
        default=24,
        metavar="N",
        help="largest picture in millions of pixels (default 24)",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=120,
        metavar="SECONDS",
        help="until a request is given up (default 120)",
    )
    add_threads(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from codtdq.lab.serve.limits import Limits
    from codtdq.lab.serve.running import serve

    use_threads(args)
    limits = Limits(
        bytes=args.max_mib * 2**20,
        pixels=args.max_megapixels * 1_000_000,
        waiting=args.queue,
        seconds=float(args.timeout),
    )

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        # it ends by a signal only; one that whoever began us ignores raises nothing
        with contextlib.suppress(KeyboardInterrupt, Terminated):
            serve(args.model, args.host, args.port, limits, say=say)
        say("stopped")
    finally:
        _leave_preparation()
    return 0


def _leave_preparation() -> None:
    """End the process if a network is still being calibrated, which nothing else can interrupt.

    Nothing of it is kept, and an interpreter that ends under running kernels would abort.
    """
    from codtdq.lab.serve.variants import PREPARATION

    if any(thread.name == PREPARATION for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(0)
