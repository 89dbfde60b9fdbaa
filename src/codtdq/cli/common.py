"""Arguments and output that several verbs share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codtdq.budgets import BUDGETS
from codtdq.budgets import HELP as BUDGET_HELP
from codtdq.columns import columns, terminal_width
from codtdq.printing import printable

if TYPE_CHECKING:
    from torch import nn

    from codtdq.data import Dataset
    from codtdq.planning import QuantConfig

DEFAULT_MODEL = "cfrn-small"
DEFAULT_METHOD = "cod-tdq-plus"  # as in Python
DEFAULT_DATASET = "camosynth"


def verb(
    kinds: Any, name: str, help_text: str, examples: Sequence[str], *, program: str = "codtdq"
) -> argparse.ArgumentParser:
    """A sub-command of a verb, with examples in its help, and `--json`."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
    )
    assert parser.prog == f"{program} {name}"
    describe(parser, examples)
    return parser


class Terminated(BaseException):
    """A SIGTERM, on its way through the stack: what is half done is cleaned up, as by Ctrl-C."""


def describe(parser: argparse.ArgumentParser, examples: Sequence[str]) -> None:
    """Put examples into the help of a verb, and add `--json`."""
    lines = (f"  {parser.prog} {line}".rstrip() for line in examples)
    parser.epilog = "examples:\n" + "\n".join(lines)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def add_model(
    parser: argparse.ArgumentParser, *, packed: bool = True, default: str = DEFAULT_MODEL
) -> None:
    """`--model`; packed: whether a quantized model will do."""
    what = "registered name" + (", or a directory that `codtdq quantize` wrote" if packed else "")
    parser.add_argument("--model", default=default, metavar="M", help=f"{what} (default {default})")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """`--checkpoint` and `--untrained`."""
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="released weights (.pth, .safetensors) of the model"
    )
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="accept random weights where none are shipped or given, to try things out",
    )


def add_size(parser: argparse.ArgumentParser) -> None:
    """`--size`."""
    parser.add_argument(
        "--size",
        type=positive,
        metavar="PX",
        help="side of the square input (default: the model's own)",
    )


def add_method(parser: argparse.ArgumentParser, help_text: str) -> None:
    """`--method`, which is also called `--preset`."""
    parser.add_argument(
        "--method", "--preset", dest="method", action=_Once, metavar="NAME", help=help_text
    )


def add_config(
    parser: argparse.ArgumentParser, default: str | None, *, learns: bool = True
) -> None:
    """`--method` (also `--preset`), `--config`, `--set`, `--overrides`, `--budget`, `--seed`.

    default: the setting where none is given; None: the model stays as it is.
    learns: whether the verb carries a method out, so that budget and seed mean something.
    """
    meant = "" if default is None else f" (default {default})"
    add_method(parser, f"method, preset or variant{meant}; see `codtdq list methods`")
    parser.add_argument("--config", metavar="FILE", help="JSON file of a config, of any method")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=JSON",
        help="change one field of the setting, e.g. --set zero_ratio=0.4",
    )
    parser.add_argument("--overrides", metavar="FILE", help="JSON file of per-layer overrides")
    if learns:
        parser.add_argument(
            "--backend",
            choices=["auto", "reference", "cpu", "triton"],
            default="auto",
            help="who executes a quantized model (default auto: the native engine where it can)",
        )
        parser.add_argument("--budget", choices=BUDGETS, default="fast", help=BUDGET_HELP)
        parser.add_argument("--seed", type=int, default=0, help="random seed of the method")
    parser.set_defaults(default_method=default)


def add_calibration(parser: argparse.ArgumentParser, *, images: int = 128) -> None:
    """`--calibration`, `--calibration-images`, and `--data-root` for sets that go by name.

    images: how many are used unless the user says so.
    """
    parser.add_argument(
        "--calibration",
        metavar="NAME",
        help="data set or folder of images to calibrate with, masks unused "
        "(default camosynth/calib)",
    )
    parser.add_argument(
        "--calibration-images",
        type=positive,
        metavar="N",
        help=f"how many of its images (default {images})",
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the benchmark sets")
    refuse_option(
        parser,
        "--data",
        "use --dataset or --calibration for a data set, --data-root for the "
        "folder that holds the benchmark sets",
    )


def add_dataset(parser: argparse.ArgumentParser, *, limit: int | None = None) -> None:
    """`--dataset`, `--limit`, `--allow-missing`: the images that a verb measures.

    limit: how many are used unless the user says so; None: all.
    """
    parser.add_argument(
        "--dataset",
        default=DEFAULT_DATASET,
        metavar="NAME[,NAME]",
        help="camosynth split, benchmark set or folder with Imgs and GT; several count as one "
        f"(default {DEFAULT_DATASET})",
    )
    shown = "use at most N images" if limit is None else f"images to use (default {limit})"
    parser.add_argument("--limit", type=int, default=limit, metavar="N", help=shown)
    parser.add_argument(
        "--allow-missing", action="store_true", help="skip files that cannot be paired"
    )


def refuse_option(parser: argparse.ArgumentParser, option: str, advice: str) -> None:
    """Answer an option that is no more with one line that says what to use."""
    parser.add_argument(option, action=_Refused, advice=advice, nargs="?", help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """An option that ends with an error."""

    def __init__(self, *args: Any, advice: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._advice = advice

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        parser.error(f"there is no {self.option_strings[0]}: {self._advice}")


class _Once(argparse.Action):
    """An option of several names that may be given one time: the last one must not just win."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            names = " and ".join(self.option_strings)
            parser.error(f"{names} are one option; give it once")
        setattr(namespace, self.dest, value)


def opened_dataset(args: argparse.Namespace) -> Dataset:
    """The data set that the options of `add_dataset` name, below `--data-root`."""
    from codtdq.data import open_dataset

    return open_dataset(
        args.dataset, args.data_root, limit=args.limit, allow_missing=args.allow_missing
    )


def add_postprocess(parser: argparse.ArgumentParser) -> None:
    """`--postprocess`."""
    parser.add_argument(
        "--postprocess",
        choices=["sigmoid", "sigmoid-minmax", "binary"],
        help="how logits become a mask (default: the model's own)",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """`--threads`."""
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="processor threads (default: every core)"
    )


def use_threads(args: argparse.Namespace) -> None:
    """Compute on as many threads as `--threads` says."""
    import torch

    if args.threads is not None:
        torch.set_num_threads(args.threads)


def positive(text: str) -> int:
    """Read a whole number, 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def opened_config(model: nn.Module, args: argparse.Namespace) -> QuantConfig | None:
    """The config that the options of `add_config` mean for a model; None: none was asked for."""
    from codtdq.resolve import open_config

    return open_config(
        model,
        name=args.method,
        file=args.config,
        changes=args.set,
        overrides=args.overrides,
        default=args.default_method,
    )


def opened_model(
    args: argparse.Namespace, *, size: int | None = None, state_dir: Path | None = None
) -> nn.Module:
    """The model that the arguments name, quantized if they give a setting or the verb has one.

    size: side of its input, if not its own. state_dir: where a method that takes long keeps what
    it has finished.
    """
    from codtdq.models.registry import feed_at
    from codtdq.resolve import open_model, quantize_for

    model = open_model(args.model, args.checkpoint, untrained=args.untrained, backend=args.backend)
    feed_at(model, size)
    config = opened_config(model, args)
    if config is None:
        return model
    return quantize_for(
        model,
        config,
        dataset=args.calibration,
        root=args.data_root,
        count=args.calibration_images,
        seed=args.seed,
        budget=args.budget,
        state_dir=state_dir,
        backend=args.backend,
    )


def command_of(args: argparse.Namespace) -> str:
    """The command line as somebody would type it again."""
    return shlex.join(["codtdq", *args.words])


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; on a terminal they fit it, and nothing reaches its controls."""
    cells = [[printable(cell) for cell in row] for row in rows]
    return columns([printable(cell) for cell in header], cells, terminal_width())
