from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import nn

from codtdq.errors import ConfigError
from codtdq.lab.training import TrainConfig
from codtdq.lab.training.optimise import (
    WeightAverage,
    freeze,
    learning_rate,
    make_optimizer,
    matching,
    parameter_groups,
    set_learning_rate,
    train_mode,
)


def test_schedule_warms_up_and_falls_to_the_end(config: TrainConfig) -> None:
    config = dataclasses.replace(config, steps=104, warmup=4, lr=1.0, final_lr=0.1)
    rates = [learning_rate(config, step) for step in range(105)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[4:]))
    assert rates[54] == pytest.approx(0.55)
    assert rates[104] == pytest.approx(0.1)


def test_only_matrices_and_kernels_are_decayed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    model.register_parameter("relative_position_bias_table", nn.Parameter(torch.zeros(9, 2)))
    decayed, free = parameter_groups(model, 0.02)
    assert decayed["weight_decay"] == 0.02
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[2].weight)}
    assert free["weight_decay"] == 0.0
    assert len(free["params"]) == 5


def test_average_follows_weights_and_float_buffers() -> None:
    model = nn.BatchNorm1d(2)
    average = WeightAverage(model, decay=0.5)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.running_mean.fill_(4.0)
        model.num_batches_tracked.fill_(7)
    average.update(model, step=100)
    assert average.module.weight.tolist() == [2.0, 2.0]
    assert average.module.running_mean.tolist() == [2.0, 2.0]
    assert int(average.module.num_batches_tracked) == 7
    assert not average.module.training


def test_early_updates_forget_the_fresh_weights() -> None:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = WeightAverage(model, decay=0.999)
        model.weight.fill_(5.0)
    average.update(model, step=0)  # decay 1 / 10
    assert float(average.module.weight) == pytest.approx(4.5)


def two_stages() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Conv2d(4, 1, 1))


def test_frozen_parts_leave_the_optimiser_and_training_mode(config: TrainConfig) -> None:
    model = two_stages()
    freeze(model, ["0.*"])
    train_mode(model)
    assert model.training and not model[0].training and not model[0][1].training
    optimizer = make_optimizer(model, config)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model[1].parameters()}
    freeze(model, ["1.bias"])
    train_mode(model)
    assert model[1].training  # a part of it still learns
    freeze(model, ["*"])
    with pytest.raises(ConfigError, match="nothing is left to train"):
        make_optimizer(model, config)


def test_slow_parameters_learn_at_their_own_rate(config: TrainConfig) -> None:
    model = two_stages()
    config = dataclasses.replace(config, slow=("0.*",), slow_lr=0.1)
    optimizer = make_optimizer(model, config)
    set_learning_rate(optimizer, 0.5)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in model[0].parameters()} == {0.05}
    assert {rates[id(p)] for p in model[1].parameters()} == {0.5}
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert (
        decays[id(model[0][0].weight)] == config.weight_decay and not decays[id(model[0][0].bias)]
    )


def test_a_pattern_must_fit_some_parameter() -> None:
    assert len(matching(two_stages(), ["0.[01].bias", "0.0.*"])) == 3
    with pytest.raises(ConfigError, match=r"no parameter of the network fits 'encoder\.\*'"):
        matching(two_stages(), ["encoder.*"])
