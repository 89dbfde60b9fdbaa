"""Why a method scores as it does: the error of its quantized inputs, averaged over a model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from codtdq.operators import listening, quant_operators


def diagnose(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, float] | None:
    """Mean over operators of the signal to noise ratio of their inputs, and of their zero mass.

    zero_mass: share of the elements other than zero that quantization turns into zero. None for a
    model that quantizes no input.
    """
    # signal, noise, elements other than zero, those that became zero
    sums: dict[str, Tensor] = {}

    def hear(name: str, x: Tensor, x_hat: Tensor, statistics: object) -> None:
        live = x != 0
        found = torch.stack(
            [
                x.double().square().sum(),
                (x.double() - x_hat.double()).square().sum(),
                live.sum().double(),
                (live & (x_hat == 0)).sum().double(),
            ]
        )
        sums[name] = sums.get(name, torch.zeros(4, dtype=torch.float64)) + found

    with torch.inference_mode(), listening(quant_operators(model), hear):
        for batch in batches:
            model(batch)
    pairs = [pair for row in sums.values() if (pair := _pair(*row.tolist())) is not None]
    if not pairs:
        return None
    sqnr, zero = (sum(column) / len(pairs) for column in zip(*pairs))
    return {"sqnr_db": round(sqnr, 4), "zero_mass": round(zero, 6)}


def _pair(signal: float, noise: float, live: float, zeroed: float) -> tuple[float, float] | None:
    """(SQNR in dB, zero mass) of an operator; None where its input was left float."""
    if not noise:
        return None
    return 10 * math.log10(max(signal, 1e-300) / noise), zeroed / live if live else 0.0
