"""Starting and resuming training runs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from codtdq.errors import ConfigError
from codtdq.lab.training.config import SourceSpec, TrainConfig
from codtdq.lab.training.losses import LOSSES
from codtdq.lab.training.session import Session, TrainResult
from codtdq.lab.training.state import RunFolder
from codtdq.models.registry import ModelInfo, model_info


def train(
    model_name: str,
    out_dir: str | Path,
    *,
    sources: Sequence[SourceSpec],
    steps: int,
    size: int | None = None,
    loss: str | None = None,
    resume: bool = False,
    stop_at: int | None = None,
    stop_after_minutes: float | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a registered model into `out_dir`.

    size, loss: default to what the model declares.
    stop_at, stop_after_minutes: end this session early with a resumable state.
    settings: further fields of `TrainConfig` (batch_size, lr, weight_decay, warmup, seed, ema,
        val_every, save_every, threads, workers, ...).
    """
    info = model_info(model_name)
    known = {name for name in TrainConfig.__dataclass_fields__}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(
            f"unknown training setting {unknown[0]!r}; accepted: {', '.join(sorted(known))}"
        )
    config = TrainConfig(
        model=model_name,
        sources=tuple(sources),
        steps=steps,
        size=info.input_size if size is None else size,
        loss=info.loss if loss is None else loss,
        **settings,
    )
    return run(
        config, out_dir, resume=resume, stop_at=stop_at, stop_after_minutes=stop_after_minutes
    )


def run(
    config: TrainConfig,
    out_dir: str | Path,
    *,
    resume: bool = False,
    stop_at: int | None = None,
    stop_after_minutes: float | None = None,
) -> TrainResult:
    """Run (or resume) the training that `config` describes; see `train`."""
    _check_against_model(config, model_info(config.model))
    folder = RunFolder(out_dir)
    with folder.held():
        return _run(config, folder, resume, stop_at, stop_after_minutes)


def _run(
    config: TrainConfig,
    folder: RunFolder,
    resume: bool,
    stop_at: int | None,
    stop_after_minutes: float | None,
) -> TrainResult:
    saved = folder.open(config, resume=resume)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    importlib.import_module("scipy.fft")  # of scenes; once denormals are gone, NumPy warns of it
    # vanishing gradients of saturated attention are denormal, which costs a CPU several times over
    torch.set_flush_denormal(True)
    try:
        # dropout draws from torch's global generator: lend it to the run and give it back
        with torch.random.fork_rng(devices=[]):
            session = Session(config, folder, saved)
            return session.run(stop_at, stop_after_minutes)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"a batch of {config.batch_size} at size {config.size} leaves a batch norm with one "
            "value per channel; take a larger --batch or --size"
        ) from error
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def _check_against_model(config: TrainConfig, info: ModelInfo) -> None:
    if config.loss not in LOSSES:
        raise ConfigError(f"loss {config.loss!r} is unknown; accepted: {', '.join(LOSSES)}")
    if config.size % info.size_multiple:
        raise ConfigError(
            f"size {config.size} does not suit {config.model}; "
            f"use a multiple of {info.size_multiple}"
        )
