"""Optimiser, learning-rate schedule and the running average of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from codtdq.errors import ConfigError
from codtdq.lab.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up over `warmup` steps, then a cosine from lr down to lr * final_lr."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    cosine = (1.0 + math.cos(math.pi * min(1.0, done))) / 2.0
    return config.lr * (config.final_lr + (1.0 - config.final_lr) * cosine)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parameters whose names fit a pattern as they are."""
    for parameter in matching(model, patterns):
        parameter.requires_grad_(False)


def train_mode(model: nn.Module) -> None:
    """Put a network into training mode, except for parts that are frozen as a whole.

    A frozen batch norm must not go on collecting statistics, nor a frozen branch be dropped.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(each.requires_grad for each in parameters):
            module.eval()


def matching(model: nn.Module, patterns: Sequence[str]) -> list[nn.Parameter]:
    """The parameters whose names fit at least one pattern; each pattern must fit some."""
    named = dict(model.named_parameters())
    found: dict[str, nn.Parameter] = {}
    for pattern in patterns:
        fitting = {name: each for name, each in named.items() if fnmatchcase(name, pattern)}
        if not fitting:
            raise ConfigError(
                f"no parameter of the network fits {pattern!r}; names are like "
                f"{', '.join(list(named)[:2])}, and * stands for any part of a name"
            )
        found |= fitting
    return list(found.values())


def parameter_groups(
    model: nn.Module, weight_decay: float, slow: Sequence[nn.Parameter] = (), slow_lr: float = 1.0
) -> list[dict[str, object]]:
    """Return the decayed and undecayed parameters, those that learn slowly apart.

    Norms, biases, scalars and bias tables are not decayed: they set levels, they do not mix.
    `factor` of a group multiplies the learning rate.
    """
    chosen = {id(parameter) for parameter in slow}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for factor in (1.0, slow_lr):
        for decay in (weight_decay, 0.0):
            groups.setdefault((factor, decay), [])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim <= 1 or name.endswith("bias_table")
            factor = slow_lr if id(parameter) in chosen else 1.0
            groups[factor, 0.0 if plain else weight_decay].append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "factor": factor}
        for (factor, decay), parameters in groups.items()
        if parameters
    ]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Build AdamW over `parameter_groups`."""
    slow = matching(model, config.slow)
    groups = parameter_groups(model, config.weight_decay, slow, config.slow_lr)
    if not groups:
        raise ConfigError(f"frozen is {', '.join(config.frozen)}: nothing is left to train")
    return torch.optim.AdamW(groups, lr=config.lr)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate, times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)


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
