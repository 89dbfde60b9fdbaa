"""The verbs of the command line: name, one line of help, and where the rest is found.

A verb's module is imported when the verb is used, so that `codtdq --help` and `--version` cost
nothing. Names instead of imports also keep the laboratory apart: it is found here, and nothing
outside it imports it. `codtdq --help` keeps this order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A verb.

    module: has the function `configure`, which adds the verb's options to its parser.
    """

    name: str
    module: str
    help: str
    configure: str = "configure"

    def load(self) -> Callable[[argparse.ArgumentParser], None]:
        """Import the function that adds the options."""
        function: Callable[[argparse.ArgumentParser], None]
        function = getattr(import_module(self.module), self.configure)
        return function


_CLI, _LAB = "codtdq.cli", "codtdq.lab.commands"
COMMANDS = (
    Command("demo", f"{_LAB}.demo", "quantize and score the two small models that come along"),
    Command("list", f"{_CLI}.inspect", "list what the package knows", "configure_list"),
    Command(
        "plan",
        f"{_CLI}.inspect",
        "show what would be quantized, operator by operator",
        "configure_plan",
    ),
    Command("doctor", f"{_CLI}.doctor", "show versions, processor and backends"),
    Command("quantize", f"{_CLI}.quantize", "quantize a model and write the packed checkpoint"),
    Command("eval", f"{_CLI}.evaluate", "score a model on a data set"),
    Command("predict", f"{_CLI}.predict", "write the mask of each image"),
    Command("serve", f"{_LAB}.serve", "try photographs in a browser: FP32 and four bits"),
    Command("export", f"{_CLI}.export", "write a network for machines without torch"),
    Command(
        "verify", f"{_CLI}.verify", "check a quantized model or program file without running it"
    ),
    Command("score", f"{_LAB}.score", "score maps of any network against masks"),
    Command("select", f"{_LAB}.select", "choose group size, tau and zero ratio without labels"),
    Command(
        "sensitivity", f"{_LAB}.sensitivity", "find the layers or roles that a setting harms most"
    ),
    Command(
        "diagnose", f"{_LAB}.diagnose", "measure where quantized models lose evidence, and draw it"
    ),
    Command("bench", f"{_LAB}.bench", "measure methods under one protocol"),
    Command("train", f"{_LAB}.train", "train a model; resumable"),
    Command(
        "import-encoder",
        f"{_LAB}.import_encoder",
        "convert the published DINOv2 ViT-S/14 weights, the encoder of vit-cod",
    ),
    Command(
        "export-synth", f"{_CLI}.synth", "write camosynth (synthetic) images and masks as PNG files"
    ),
    Command("table", f"{_LAB}.table", "show benchmark results as the tables of the paper"),
    Command("report", f"{_LAB}.report", "show benchmark results as one page for a browser"),
)


class Verbs(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The verb on the command line; its options are added when it is there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending: dict[str, Command] = {}

    def add_command(self, command: Command) -> None:
        """Add a verb whose options are not looked at yet."""
        sentence = command.help[0].upper() + command.help[1:] + "."
        self.add_parser(command.name, help=command.help, description=sentence)
        self._pending[command.name] = command

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add the options of the verb, then let it parse the rest."""
        assert values
        command = self._pending.pop(values[0], None)
        if command is not None:
            command.load()(self.choices[command.name])
        super().__call__(parser, namespace, values, option_string)
