"""The optimisation of one block; everything around it is in `reconstruction`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from codtdq.methods.rivals.block_data import Arguments, BlockData
from codtdq.methods.rivals.learning import DroppingInput, DropPool, LearnableInput
from codtdq.methods.rivals.soft_rounding import SoftRounding
from codtdq.numerics.straight_through import mixed
from codtdq.operators.quantized import QuantOperator
from codtdq.schemes.weights import UniformWeight

BlockLoss = Callable[[str, Tensor, Tensor, int, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Budget:
    """How much is done, and how fast."""

    images: int
    steps: int  # per block
    batch: int
    rounding_rate: float  # Adam, of V
    step_rate: float  # Adam with cosine decay, of what input quantizers learn
    relative: bool = False  # whether step_rate is a share of the value it starts from
    drop: float = 0.5  # probability that a value is the quantized one
    penalty: float = 0.01  # weight of the rounding penalty
    warm_up: float = 0.2  # share of the steps without it
    beta: tuple[float, float] = (20.0, 2.0)


BUDGETS = {
    # steps x rounding rate is the paper's: with a smaller rate few roundings would be decided
    "fast": Budget(images=32, steps=100, batch=4, rounding_rate=0.2, step_rate=5e-3, relative=True),
    "paper": Budget(images=128, steps=20_000, batch=1, rounding_rate=1e-3, step_rate=4e-5),
    "tenth": Budget(images=128, steps=2_000, batch=1, rounding_rate=1e-2, step_rate=4e-4),
    "least": Budget(images=1, steps=1, batch=1, rounding_rate=0.2, step_rate=5e-3, relative=True),
}


def learn_block(
    data: BlockData,
    module: nn.Module,
    *,
    rounding: dict[QuantOperator, Tensor],
    inputs: dict[QuantOperator, LearnableInput],
    loss: BlockLoss,
    budget: Budget,
    generator: torch.Generator,
) -> tuple[int, float]:
    """Learn, harden and install; returns (steps done, share of weights that stayed undecided).

    rounding: float weights of operators whose store is uniform (others stay as they are).
    inputs: what stands in for the input quantizers; operators without one stay float.
    """
    pool = DropPool(budget.drop, generator)
    soft = {
        sim: SoftRounding(weight, sim.weight_scheme)
        for sim, weight in rounding.items()
        if isinstance(sim.weight_scheme, UniformWeight)
    }
    for sim, learned in inputs.items():
        sim.input_scheme = DroppingInput(learned, pool)  # type: ignore[assignment]
    try:
        with torch.enable_grad():
            learned_inputs = list(inputs.values())
            steps = _optimise(data, module, soft, learned_inputs, pool, loss, budget, generator)
    finally:  # whatever happens, nothing that drops stays in the model
        for sim, learned in inputs.items():
            sim.input_scheme = learned.frozen()
        for sim, weight in soft.items():
            sim.weight_scheme = weight.hardened()
        for sim in {*soft, *inputs}:
            sim.refresh()
    total = sum(w.floors.numel() for w in soft.values())
    undecided = sum(w.undecided() * w.floors.numel() for w in soft.values())
    return steps, undecided / max(total, 1)


def _optimise(
    data: BlockData,
    module: nn.Module,
    soft: dict[QuantOperator, SoftRounding],
    inputs: list[LearnableInput],
    pool: DropPool,
    loss: BlockLoss,
    budget: Budget,
    generator: torch.Generator,
) -> int:
    logits = [weight.logits for weight in soft.values()]
    of_rounding = torch.optim.Adam(logits, lr=budget.rounding_rate, fused=True) if logits else None
    of_inputs = _input_optimiser(inputs, budget)
    for step in range(budget.steps):
        share = step / budget.steps
        if any([learned.advance(share) for learned in inputs]):  # a list: all of them advance
            of_inputs = _input_optimiser(inputs, budget)
        images = _draw(data, budget.batch, generator)
        quant, plain, target = data.batch(step % data.block.calls, images)
        args, kwargs = _mix(quant, plain, pool)
        beta = beta_at(share, budget)
        penalty = None if beta is None else (budget.penalty, beta)
        for sim, weight in soft.items():
            sim._buffers["weight_cache"] = weight(penalty)
        value = loss(data.block.name, module(*args, **kwargs), target, step, images)
        chosen = [o for o in (of_rounding, of_inputs) if o is not None]
        for optimiser in chosen:
            optimiser.zero_grad(set_to_none=True)
        if not value.requires_grad:
            return 0  # nothing here can be learned
        value.backward()
        if of_inputs is not None:
            for group in of_inputs.param_groups:
                group["lr"] = group["initial_lr"] * 0.5 * (1 + math.cos(math.pi * share))
        for optimiser in chosen:
            optimiser.step()
    return budget.steps


def beta_at(share: float, budget: Budget) -> float | None:
    """Exponent of the rounding penalty: falls linearly after the warm-up, None during it."""
    if share < budget.warm_up:
        return None
    start, end = budget.beta
    return end + (start - end) * (1 - share) / (1 - budget.warm_up)


def _input_optimiser(inputs: list[LearnableInput], budget: Budget) -> torch.optim.Optimizer | None:
    groups = []
    for parameter in (p for learned in inputs for p in learned.parameters()):
        scale = float(parameter.detach().abs().mean()) if budget.relative else 1.0
        rate = budget.step_rate * scale
        groups.append({"params": [parameter], "lr": rate, "initial_lr": rate})
    return torch.optim.Adam(groups, fused=True) if groups else None


def _draw(data: BlockData, batch: int, generator: torch.Generator) -> Sequence[int]:
    count = min(batch if data.block.joinable else 1, data.images)
    picked: list[int] = torch.randperm(data.images, generator=generator)[:count].tolist()
    return picked


def _mix(quant: Arguments, plain: Arguments, pool: DropPool) -> Arguments:
    """Every float tensor among the arguments, elementwise from the one or the other."""
    leaves, spec = tree_flatten(quant)
    others, _ = tree_flatten(plain)
    both = [
        mixed(a, b, pool.keep(a)) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a, b in zip(leaves, others)
    ]
    result: Arguments = tree_unflatten(both, spec)
    return result
