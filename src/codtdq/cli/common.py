"""Arguments and output that several verbs share."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

DEFAULT_MODEL = "cfrn-small"
DEFAULT_METHOD = "cod-tdq-plus"  # as in Python
DEFAULT_DATASET = "camosynth"


def verb(verbs: Any, name: str, help_text: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A sub-command with examples in its help, and `--json`."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  codtdq {name} {line}".rstrip() for line in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    return parser


def add_model(parser: argparse.ArgumentParser, *, packed: bool = True) -> None:
    """`--model`."""
    what = "registered name" + (", or a directory that `codtdq quantize` wrote" if packed else "")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="M", help=f"{what} (default {DEFAULT_MODEL})"
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """`--checkpoint` and `--untrained`."""
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="released weights (.pth, .safetensors) of the model"
    )
    parser.add_argument(
        "--untrained", action="store_true",
        help="accept random weights where none are shipped or given, to try things out",
    )  # fmt: skip


def add_config(
    parser: argparse.ArgumentParser, default: str | None, *, learns: bool = True
) -> None:
    """`--method` (also `--preset`), `--config`, `--set`, `--overrides`, `--budget`, `--seed`.

    default: the setting where none is given; None: the model stays as it is.
    learns: whether the verb carries a method out, so that budget and seed mean something.
    """
    meant = "" if default is None else f" (default {default})"
    parser.add_argument(
        "--method",
        "--preset",
        dest="method",
        metavar="NAME",
        help=f"method, preset or variant{meant}; see `codtdq list methods`",
    )
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
            "--budget",
            choices=["fast", "paper"],
            default="fast",
            help="optimisation steps of methods that reconstruct (default fast)",
        )
        parser.add_argument("--seed", type=int, default=0, help="random seed of the method")
    parser.set_defaults(default_method=default)


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """`--calibration` and `--calibration-images`."""
    parser.add_argument(
        "--calibration", metavar="D",
        help="data set for settings that need one, masks unused (default camosynth/calib)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration-images", type=int, metavar="N", help="how many of its images (default 128)"
    )


def add_data(parser: argparse.ArgumentParser, *, default: str = DEFAULT_DATASET) -> None:
    """`--dataset`, `--data`, `--limit`, `--allow-missing`."""
    parser.add_argument(
        "--dataset", default=default, metavar="D",
        help=f"camosynth split, benchmark name or folder (default {default})",
    )  # fmt: skip
    parser.add_argument("--data", metavar="ROOT", help="folder that holds the benchmarks")
    parser.add_argument("--limit", type=int, metavar="N", help="use at most N images")
    parser.add_argument(
        "--allow-missing", action="store_true", help="skip files that cannot be paired"
    )


def add_images(
    parser: argparse.ArgumentParser, *, default: str = DEFAULT_DATASET, limit: int | None = None
) -> None:
    """`--data`, `--dataset`, `--limit`, for verbs that look at images rather than score a set."""
    parser.add_argument(
        "--data", metavar="D",
        help=f"camosynth split or folder (default {default}); with --dataset, the folder that "
             "holds the benchmarks",
    )  # fmt: skip
    parser.add_argument("--dataset", metavar="NAME", help="a benchmark by name, e.g. CAMO")
    shown = "use at most N images" if limit is None else f"images to use (default {limit})"
    parser.add_argument("--limit", type=int, default=limit, metavar="N", help=shown)
    parser.set_defaults(default_data=default)


def named_images(args: argparse.Namespace) -> tuple[str, str | None]:
    """Name and root of the data set that the options of `add_images` mean."""
    if args.dataset is not None:
        return args.dataset, args.data
    return args.data or args.default_data, None


def add_postprocess(parser: argparse.ArgumentParser) -> None:
    """`--postprocess`."""
    parser.add_argument(
        "--postprocess", choices=["sigmoid", "sigmoid-minmax", "binary"],
        help="how logits become a mask (default: the model's own)",
    )  # fmt: skip


def opened_model(args: argparse.Namespace, *, state_dir: Path | None = None) -> nn.Module:
    """The model that the arguments name, quantized if they give a setting or the verb has one.

    state_dir: where a method that takes long keeps what it has finished.
    """
    from codtdq.resolve import open_config, open_model, quantize_for

    model = open_model(args.model, args.checkpoint, untrained=args.untrained)
    config = open_config(
        model,
        name=args.method,
        file=args.config,
        changes=args.set,
        overrides=args.overrides,
        default=args.default_method,
    )
    if config is None:
        return model
    return quantize_for(
        model,
        config,
        dataset=args.calibration,
        root=getattr(args, "data", None),  # predict has no benchmarks
        count=args.calibration_images,
        seed=args.seed,
        budget=args.budget,
        state_dir=state_dir,
        backend=getattr(args, "backend", None) or "auto",
    )


def command_of(args: argparse.Namespace) -> str:
    """The command line as somebody would type it again."""
    return shlex.join(["codtdq", *args.words])


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def write_json(path: str | Path, data: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".codtdq-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in lines)
