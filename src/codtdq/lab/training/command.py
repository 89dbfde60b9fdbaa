"""The training command: its arguments and what it does with them."""

from __future__ import annotations

import argparse
import signal
from typing import Any

from codtdq.lab.training.config import TrainConfig, parse_source
from codtdq.lab.training.engine import train
from codtdq.lab.training.session import TrainResult

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


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the training command on `parser`."""
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"registered model (default {DEFAULT_MODEL})"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--source",
        action="append",
        metavar="KIND[:FOLDER][:WEIGHT]",
        help="camosynth, camosynth-warmup, compose:FOLDER (photos) or pairs:FOLDER (images with "
        f"masks); repeatable (default {', '.join(DEFAULT_SOURCES)})",
    )
    parser.add_argument(
        "--holdout", type=int, default=0, metavar="N", help="images of each pairs source to keep"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=DEFAULT_STEPS,
        help=f"length of the whole run (default {DEFAULT_STEPS})",
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
            default=[],
            metavar="PATTERN",
            help=f"parameters that {text}, e.g. 'encoder.blocks.[0-7].*'; repeatable",
        )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="compute products in bfloat16; fast with AVX512-BF16 or AMX",
    )
    parser.add_argument("--channels-last", action="store_true", help="NHWC memory layout")
    for option, field, kind, text in _SETTINGS:
        default = _DEFAULTS[field]
        parser.add_argument(
            option, dest=field, type=kind, default=default, help=f"{text} (default {default})"
        )
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="end this session at STEP")
    parser.add_argument(
        "--stop-after-minutes", type=float, metavar="M", help="end this session after M minutes"
    )


def run_train(args: argparse.Namespace) -> TrainResult:
    """Train as the parsed arguments say."""
    return train(
        args.model,
        args.out,
        sources=[
            parse_source(text, holdout=args.holdout) for text in args.source or DEFAULT_SOURCES
        ],
        steps=args.steps,
        size=args.size,
        loss=args.loss,
        init=args.init,
        encoder=args.encoder,
        frozen=tuple(args.frozen),
        slow=tuple(args.slow),
        bfloat16=args.bfloat16,
        channels_last=args.channels_last,
        resume=args.resume,
        stop_at=args.stop_at,
        stop_after_minutes=args.stop_after_minutes,
        **{field: getattr(args, field) for _, field, _, _ in _SETTINGS},
    )


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
