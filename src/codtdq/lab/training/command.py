"""The training command: its arguments and what it does with them."""

from __future__ import annotations

import argparse
import dataclasses
import signal
from typing import Any

from codtdq.errors import ConfigError
from codtdq.lab.training.config import TrainConfig, load_config, parse_source
from codtdq.lab.training.engine import run, train
from codtdq.lab.training.session import TrainResult
from codtdq.lab.training.state import RunFolder

_DEFAULTS = {name: field.default for name, field in TrainConfig.__dataclass_fields__.items()}
# option, TrainConfig field, type, help
_SETTINGS: tuple[tuple[str, str, Any, str], ...] = (
    ("--batch", "batch_size", int, "images per step"),
    ("--lr", "lr", float, "peak learning rate"),
    ("--final-lr", "final_lr", float, "learning rate at the end, as a part of the peak"),
    ("--weight-decay", "weight_decay", float, "AdamW weight decay (not on norms and biases)"),
    ("--warmup", "warmup", int, "steps of linear warm-up"),
    ("--slow-lr", "slow_lr", float, "learning rate of --slow parameters, as a part of the others'"),
    ("--ema", "ema", float, "decay of the weight average; 0 switches it off"),
    ("--seed", "seed", int, "seed of weights, data order and augmentation"),
    ("--synth-reuse", "synth_reuse", float, "mean uses of each generated image"),
    ("--val-images", "val_images", int, "camosynth validation images"),
    ("--val-every", "val_every", int, "steps between validations"),
    ("--save-every", "save_every", int, "steps between saved states"),
    ("--log-every", "log_every", int, "steps between lines of log.jsonl"),
    ("--threads", "threads", int, "torch threads of the trainer"),
    ("--workers", "workers", int, "background processes that prepare batches"),
)


DEFAULT_MODEL = "cfrn-small"
DEFAULT_SOURCES = ("camosynth", "camosynth-warmup")  # what comes with the package
DEFAULT_STEPS = 6000
_FIELDS = (
    "model",
    "steps",
    "size",
    "loss",
    "init",
    "encoder",
    "frozen",
    "slow",
    "bfloat16",
    "channels_last",
)


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the training command on `parser`.

    None of them has a default here: what is not given comes from the run that goes on.
    """
    parser.add_argument("--model", help=f"registered model (default {DEFAULT_MODEL})")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--source",
        action="append",
        metavar="KIND[:FOLDER][:WEIGHT]",
        help="camosynth, camosynth-warmup, compose:FOLDER (photos) or pairs:FOLDER (images with "
        f"masks); repeatable (default {', '.join(DEFAULT_SOURCES)})",
    )
    parser.add_argument(
        "--holdout", type=int, metavar="N", help="images of each pairs source to keep"
    )
    parser.add_argument(
        "--steps", type=int, help=f"length of the whole run (default {DEFAULT_STEPS})"
    )
    parser.add_argument("--size", type=int, help="image side (default: the model's)")
    parser.add_argument("--loss", help="loss by name (default: the model's)")
    parser.add_argument("--init", metavar="FILE", help="checkpoint to start from")
    parser.add_argument(
        "--encoder",
        metavar="FILE",
        help="checkpoint of the encoder alone, e.g. from `codtdq import-encoder`",
    )
    for option, text in (("--frozen", "keep their values"), ("--slow", "learn at --slow-lr")):
        parser.add_argument(
            option,
            action="append",
            metavar="PATTERN",
            help=f"parameters that {text}, e.g. 'encoder.blocks.[0-7].*'; repeatable",
        )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        default=None,
        help="compute products in bfloat16; fast with AVX512-BF16 or AMX",
    )
    parser.add_argument(
        "--channels-last", action="store_true", default=None, help="NHWC memory layout"
    )
    for option, field, kind, text in _SETTINGS:
        default = _DEFAULTS[field]
        parser.add_argument(option, dest=field, type=kind, help=f"{text} (default {default})")
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in --out, with its settings"
    )
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="end this session at STEP")
    parser.add_argument(
        "--stop-after-minutes", type=float, metavar="M", help="end this session after M minutes"
    )


def run_train(args: argparse.Namespace) -> TrainResult:
    """Train as the parsed arguments say; a run that goes on has its settings from its folder."""
    given = _given(args)
    session: dict[str, Any] = {
        "resume": args.resume,
        "stop_at": args.stop_at,
        "stop_after_minutes": args.stop_after_minutes,
    }
    saved = RunFolder(args.out).config
    if args.resume and saved.is_file():
        config = load_config(saved)
        return run(
            dataclasses.replace(config, **_sources(args, config), **given), args.out, **session
        )
    if args.resume and not given and args.source is None:  # a mistyped folder, most likely
        raise ConfigError(
            f"{args.out} holds no training run to go on with; leave out --resume to begin one"
        )
    name, steps = given.pop("model", DEFAULT_MODEL), given.pop("steps", DEFAULT_STEPS)
    sources = [
        parse_source(text, holdout=args.holdout or 0) for text in args.source or DEFAULT_SOURCES
    ]
    return train(name, args.out, sources=sources, steps=steps, **given, **session)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of `TrainConfig` that stand on the command line, but for its sources."""
    fields = [*_FIELDS, *(field for _, field, _, _ in _SETTINGS)]
    found = {field: getattr(args, field) for field in fields}
    return {field: value for field, value in found.items() if value is not None}


def _sources(args: argparse.Namespace, saved: TrainConfig) -> dict[str, Any]:
    """The sources of the command line, or those of the run with another holdout, or neither."""
    if args.source is not None:
        found = [parse_source(text, holdout=args.holdout or 0) for text in args.source]
    elif args.holdout is not None:
        found = [
            dataclasses.replace(source, holdout=args.holdout) if source.kind == "pairs" else source
            for source in saved.sources
        ]
    else:
        return {}
    return {"sources": tuple(found)}


def summary(result: TrainResult) -> str:
    """Return the lines for a person: where the run stands and how it scores."""
    lines = [f"{result.out_dir}: step {result.step} of {result.steps}"]
    if not result.finished:
        lines[0] += f", stopped by {result.stopped_by}; continue with --resume"
    for name, scores in result.scores.items():
        lines.append(f"  {name}: " + ", ".join(f"{key} {v:.4f}" for key, v in scores.items()))
    return "\n".join(lines)


def exit_code(result: TrainResult) -> int:
    """0, or the shell's 128 + number when a signal ended the session."""
    ended_by = signal.Signals.__members__.get(result.stopped_by or "")
    return 0 if ended_by is None else 128 + ended_by.value
