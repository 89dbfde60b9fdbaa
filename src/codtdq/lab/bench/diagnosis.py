"""Why a method scores as it does: the error of its quantized inputs, averaged over a model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from codtdq.evaluation import layer_losses
from codtdq.operators.simulated import SimOperator, sim_operators


def diagnose(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, float] | None:
    """Mean over operators of the signal to noise ratio of their inputs, and of their zero mass.

    zero_mass: share of the elements other than zero that quantization turns into zero. None for a
    model that quantizes no input.
    """
    if sim_operators(model):
        pairs = _of_simulated(model, batches)
    else:
        pairs = [(loss.sqnr_db, loss.zero_mass) for loss in layer_losses(model, batches)]
    pairs = [pair for pair in pairs if math.isfinite(pair[0])]  # infinite: left float
    if not pairs:
        return None
    sqnr, zero = (sum(column) / len(pairs) for column in zip(*pairs))
    return {"sqnr_db": round(sqnr, 4), "zero_mass": round(zero, 6)}


def _of_simulated(model: nn.Module, batches: Iterable[Tensor]) -> list[tuple[float, float]]:
    """(SQNR in dB, zero mass) of each operator, over all batches."""
    # signal, noise, elements other than zero, those that became zero
    sums: dict[SimOperator, Tensor] = {}

    def listen(module: SimOperator, x: Tensor, x_hat: Tensor) -> None:
        x = module.input_quantizer.reference(x)  # some schemes rescale before they round
        live = x != 0
        found = torch.stack([
            x.double().square().sum(), (x.double() - x_hat.double()).square().sum(),
            live.sum().double(), (live & (x_hat == 0)).sum().double(),
        ])  # fmt: skip
        sums[module] = sums.get(module, torch.zeros(4, dtype=torch.float64)) + found

    operators = sim_operators(model).values()
    try:
        for operator in operators:
            operator.listener = listen
        with torch.inference_mode():
            for batch in batches:
                model(batch)
    finally:
        for operator in operators:
            operator.listener = None
    pairs = []
    for signal, noise, live, zeroed in (row.tolist() for row in sums.values()):
        sqnr = 10 * math.log10(max(signal, 1e-300) / noise) if noise else math.inf
        pairs.append((sqnr, zeroed / live if live else 0.0))
    return pairs
