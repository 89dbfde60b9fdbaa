"""`python -m codtdq.lab.training`: train a model from the shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from codtdq.errors import CodtdqError
from codtdq.lab.training.command import add_train_arguments, exit_code, run_train, summary


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, train, report."""
    parser = argparse.ArgumentParser(prog="python -m codtdq.lab.training", description=__doc__)
    add_train_arguments(parser)
    try:
        result = run_train(parser.parse_args(argv))
    except CodtdqError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(summary(result) + "\n")
    return exit_code(result)


if __name__ == "__main__":
    sys.exit(main())
