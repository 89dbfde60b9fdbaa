"""One session of a run: the state of training in this process, and the loop over steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codtdq.errors import CheckpointError, ConfigError
from codtdq.io import write_text
from codtdq.lab.interrupt import StopRequest
from codtdq.lab.text import one_line
from codtdq.lab.training.config import TrainConfig
from codtdq.lab.training.losses import LOSSES
from codtdq.lab.training.optimise import (
    WeightAverage,
    freeze,
    learning_rate,
    make_optimizer,
    set_learning_rate,
    train_mode,
)
from codtdq.lab.training.state import RunFolder, save_state
from codtdq.lab.training.stream import BatchStream
from codtdq.lab.training.validate import to_inputs, to_masks, validate, validation_sets
from codtdq.models.registry import build_model, model_info
from codtdq.models.weights import load_checkpoint
from codtdq.progress import Progress

Scores = dict[str, dict[str, float]]  # validation set -> metric -> value


@dataclass(frozen=True)
class TrainResult:
    """Where a session ended.

    stopped_by: None when the run is complete, else "stop_at", "time" or a signal's name.
    """

    out_dir: Path
    step: int
    steps: int
    stopped_by: str | None
    scores: Scores = field(default_factory=dict)  # of the last validation
    best_S: float | None = None
    best_step: int | None = None

    @property
    def finished(self) -> bool:
        """Whether every step of the run is done."""
        return self.step >= self.steps


class Session:
    """Model, optimiser, average and position of a run in this process."""

    def __init__(
        self, config: TrainConfig, folder: RunFolder, saved: dict[str, Any] | None
    ) -> None:
        self.config, self.folder = config, folder
        self.info = model_info(config.model)
        torch.manual_seed(config.seed)
        self.model = _fresh_model(config)
        freeze(self.model, config.frozen)
        self.optimizer = make_optimizer(self.model, config)
        self.average = WeightAverage(self.model, config.ema) if config.ema else None
        self.step = 0
        self.best_S: float | None = None
        self.best_step: int | None = None
        self.scores: Scores = {}
        self._loss_sum, self._loss_count = 0.0, 0
        if saved is not None:
            try:
                self._restore(saved)
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise CheckpointError(
                    f"{folder.state} does not fit this run ({one_line(error)}); start the run anew"
                ) from error
        self.validation = validation_sets(config)
        for name, samples in self.validation.items():
            if name != "camosynth-val":
                names = "".join(f"{sample.name}\n" for sample in samples)
                write_text(folder.path / f"holdout-{name}.txt", names)

    def run(self, stop_at: int | None, stop_after_minutes: float | None) -> TrainResult:
        """Train to the end, `stop_at`, the time limit or a signal; then save."""
        config = self.config
        last = config.steps if stop_at is None else min(config.steps, stop_at)
        limit = None if stop_after_minutes is None else 60.0 * stop_after_minutes
        began = time.monotonic()
        reason: str | None = None
        train_mode(self.model)
        if self.step >= last:
            return self._result("stop_at" if last < config.steps else None)
        with (
            StopRequest() as request,
            BatchStream(config, self.step, last) as stream,
            Progress(f"train {config.model}", config.steps) as progress,
        ):
            progress.count = self.step
            meter = _SpeedMeter(config.batch_size)
            while self.step < last and reason is None:
                loss = self._train_step(*stream.next())
                speed = meter.tick()
                rate = learning_rate(config, self.step - 1)
                progress.step(note=f"loss {loss:.3f} lr {rate:.1e} {speed:.1f} samples/s")
                self._log(speed)
                reason = request.reason
                if limit is not None and time.monotonic() - began >= limit:
                    reason = reason or "time"
                if self.step % config.save_every == 0 and self.step < last and reason is None:
                    self.save()
        self.save()
        if reason is None and self.step < config.steps:
            reason = "stop_at"
        return self._result(None if self.step >= config.steps else reason)

    def _train_step(self, images: Any, masks: Any) -> float:
        config = self.config
        inputs, target = to_inputs(images, self.info), to_masks(masks)
        if config.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        set_learning_rate(self.optimizer, learning_rate(config, self.step))
        with torch.autocast("cpu", torch.bfloat16, enabled=config.bfloat16):
            outputs = self.model(inputs)
        loss = LOSSES[config.loss](outputs, target, self.step / config.steps)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip)
        # one bad batch must not poison the weights; torch reports it as a non-finite norm
        if torch.isfinite(norm):
            self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model, self.step)
        self.step += 1
        value = float(loss.detach())
        self._loss_sum, self._loss_count = self._loss_sum + value, self._loss_count + 1
        return value

    def _log(self, speed: float) -> None:
        config = self.config
        if self.step % config.log_every == 0 or self.step == config.steps:
            row = {
                "kind": "train",
                "step": self.step,
                "loss": round(self._loss_sum / self._loss_count, 5),
                "lr": learning_rate(config, self.step - 1),
                "samples_per_s": round(speed, 2),
            }
            self.folder.append_log(row)
            self._loss_sum, self._loss_count = 0.0, 0
        if self.step % config.val_every == 0 or self.step == config.steps:
            self._validate()

    def _validate(self) -> None:
        model = self.evaluated()
        model.eval()
        self.scores = {
            name: validate(model, self.info, samples) for name, samples in self.validation.items()
        }
        train_mode(self.model)
        for name, scores in self.scores.items():
            self.folder.append_log({"kind": "val", "step": self.step, "set": name, **scores})
        if self.scores:
            mean = sum(scores["S"] for scores in self.scores.values()) / len(self.scores)
            if self.best_S is None or mean > self.best_S:
                self.best_S, self.best_step = mean, self.step
                save_state(self.folder.best, {"step": self.step, "weights": model.state_dict()})

    def evaluated(self) -> nn.Module:
        """Return the network to judge and export: the average if there is one."""
        return self.model if self.average is None else self.average.module

    def save(self) -> None:
        """Write everything that a resumed session needs."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "loss_sum": self._loss_sum,
            "loss_count": self._loss_count,
            "best_S": self.best_S,
            "best_step": self.best_step,
            "scores": self.scores,
        }
        save_state(self.folder.state, state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        torch.set_rng_state(state["rng"])
        self.step = state["step"]
        self._loss_sum, self._loss_count = state["loss_sum"], state["loss_count"]
        self.best_S, self.best_step = state["best_S"], state["best_step"]
        self.scores = state["scores"]

    def _result(self, stopped_by: str | None) -> TrainResult:
        return TrainResult(
            out_dir=self.folder.path,
            step=self.step,
            steps=self.config.steps,
            stopped_by=stopped_by,
            scores=self.scores,
            best_S=self.best_S,
            best_step=self.best_step,
        )


class _SpeedMeter:
    """Samples per second, averaged over about the last 20 steps; pauses for validation count."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.last = batch_size, time.monotonic()
        self.ticks, self.seconds = 0, 0.0

    def tick(self) -> float:
        """Note one finished step and return the speed."""
        now = time.monotonic()
        step, self.last = max(now - self.last, 1e-9), now
        self.ticks += 1
        # the first step waits for the workers to start; later ones outweigh it quickly
        weight = 1.0 if self.ticks <= 2 else max(0.05, 1.0 / (self.ticks - 1))
        self.seconds += weight * (step - self.seconds)
        return self.batch_size / self.seconds


def _fresh_model(config: TrainConfig) -> nn.Module:
    model = build_model(config.model)
    if config.init is not None:
        load_checkpoint(model, config.init, architecture=config.model)
    if config.encoder is not None:
        child = dict(model.named_children()).get("encoder")
        if child is None:
            raise ConfigError(f"{config.model} has no child `encoder`; leave the option out")
        load_checkpoint(child, config.encoder, architecture=f"encoder of {config.model}")
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
