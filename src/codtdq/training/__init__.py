"""Training of registered models: `train` runs, `export` turns a run into weights and a card."""

from __future__ import annotations

from codtdq.training.command import add_train_arguments, run_train
from codtdq.training.config import SourceSpec, TrainConfig, parse_source
from codtdq.training.engine import run, train
from codtdq.training.export import export
from codtdq.training.session import TrainResult

__all__ = [
    "SourceSpec",
    "TrainConfig",
    "TrainResult",
    "add_train_arguments",
    "export",
    "parse_source",
    "run",
    "run_train",
    "train",
]
