"""The verbs of the command line, by the name of the module that registers them.

Names instead of imports: the laboratory is found here, and nothing outside it imports it. A module
has `register(verbs)`, which adds one or more sub-commands; `codtdq --help` keeps this order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

COMMANDS = (
    "codtdq.lab.commands.demo",
    "codtdq.cli.inspect",
    "codtdq.cli.doctor",
    "codtdq.cli.quantize",
    "codtdq.cli.evaluate",
    "codtdq.cli.predict",
    "codtdq.cli.verify",
    "codtdq.lab.commands.score",
    "codtdq.lab.commands.select",
    "codtdq.lab.commands.sensitivity",
    "codtdq.lab.commands.diagnose",
    "codtdq.lab.commands.bench",
    "codtdq.lab.commands.train",
    "codtdq.lab.commands.import_encoder",
    "codtdq.cli.synth",
    "codtdq.lab.commands.table",
    "codtdq.lab.commands.report",
)


def register_commands(verbs: Any) -> None:
    """Have every module add its sub-commands to `verbs`."""
    for name in COMMANDS:
        import_module(name).register(verbs)
