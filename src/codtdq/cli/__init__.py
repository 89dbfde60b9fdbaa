"""The command `codtdq`: argument parsing and printing only; every verb calls one function."""

from codtdq.cli.main import main

__all__ = ["main"]
