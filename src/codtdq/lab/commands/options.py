"""Values of options that several verbs of the laboratory take."""

from __future__ import annotations

import argparse

from codtdq.cli.common import positive as positive


def words(text: str) -> list[str]:
    """Split a list at its commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def whole_numbers(text: str) -> list[int]:
    """Read a list of whole numbers."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers, e.g. 0,1,2") from None


def positive_numbers(text: str) -> list[int]:
    """Read a list of whole numbers of 1 or more, each once."""
    return list(dict.fromkeys(positive(word.strip()) for word in text.split(",")))


def numbers_or_none(text: str) -> list[float | None]:
    """Read a list of numbers in which `none` stands for no bound."""
    try:
        return [None if word.strip() == "none" else float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected numbers or none, e.g. 0.5,1,none"
        ) from None


def model_file(text: str) -> tuple[str, str]:
    """Read MODEL=FILE."""
    model, separator, file = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: expected MODEL=FILE, e.g. cfrn=cfrn.pth")
    return model, file
