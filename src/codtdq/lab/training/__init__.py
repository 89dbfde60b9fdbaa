"""Training of registered models: `train` runs, `export` turns a run into weights and a card."""

from __future__ import annotations

from codtdq.lab.training.command import add_train_arguments, run_train
from codtdq.lab.training.config import SourceSpec, TrainConfig, parse_source
from codtdq.lab.training.engine import run, train
from codtdq.lab.training.export import export
from codtdq.lab.training.session import TrainResult

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
