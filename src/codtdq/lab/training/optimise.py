"""Optimiser, learning-rate schedule and the running average of the weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from codtdq.lab.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up over `warmup` steps, then a cosine from lr down to lr * final_lr."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    cosine = (1.0 + math.cos(math.pi * min(1.0, done))) / 2.0
    return config.lr * (config.final_lr + (1.0 - config.final_lr) * cosine)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the decayed and undecayed parameters.

    Norms, biases, scalars and bias tables are not decayed: they set levels, they do not mix.
    """
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim <= 1 or name.endswith("bias_table")
            (free if plain else decayed).append(parameter)
    groups: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Build AdamW over `parameter_groups`."""
    return torch.optim.AdamW(parameter_groups(model, config.weight_decay), lr=config.lr)


class WeightAverage:
    """Exponential moving average of parameters and float buffers; `module` can be evaluated.

    The decay at update t is min(decay, (1 + t) / (10 + t)), so that the fresh weights of the
    first steps are forgotten quickly.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after `step` (0-based)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages: list[Tensor] = []
        values: list[Tensor] = []
        source = model.state_dict()
        for name, average in self.module.state_dict().items():
            if average.is_floating_point():
                averages.append(average)
                values.append(source[name])
            else:
                average.copy_(source[name])
        torch._foreach_lerp_(averages, values, 1.0 - decay)
