"""Which layers lose most: the quantizer's own statistics, averaged over images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from codtdq.numerics import ActivationResult
from codtdq.operators import listening, quant_operators
from codtdq.schemes.inputs import FloatInput


@dataclass
class LayerLoss:
    """Averages over all inputs of one operator."""

    name: str
    role: str
    calls: int = 0
    sqnr_db: float = 0.0  # signal to quantization noise of the input
    zero_mass: float = 0.0  # rho_0
    clip_rate: float = 0.0
    eta: float = 0.0  # step over standard deviation, median over groups

    def add(self, exact: Tensor, x_hat: Tensor, statistics: ActivationResult | None) -> None:
        """Take in one quantized input; a scheme without groups has no steps and radii to tell."""
        noise = (exact - x_hat).double().square().sum()
        power = exact.double().square().sum()
        sqnr = 10 * torch.log10(power / noise.clamp(min=1e-30)).clamp(-300, 300).item()
        clip_rate = eta = float("nan")
        if statistics is not None:
            clip_rate = statistics.clip_rate.mean().item()
            eta = statistics.eta.median().item()
        self._average(sqnr_db=sqnr, zero_mass=zero_mass(exact, x_hat), clip_rate=clip_rate, eta=eta)

    def _average(self, **values: float) -> None:
        self.calls += 1
        for field, value in values.items():
            mean = getattr(self, field)
            setattr(self, field, mean + (value - mean) / self.calls)


def zero_mass(exact: Tensor, x_hat: Tensor) -> float:
    """rho_0: share of the values that are not zero to begin with and become zero (Eq. rho0_def).

    The one meaning for every scheme; 0 where there is no such value.
    """
    evidence = exact != 0
    lost = (evidence & (x_hat == 0)).sum()
    return (lost / evidence.sum().clamp(min=1)).item()


def layer_losses(model: nn.Module, inputs: Iterable[Tensor]) -> list[LayerLoss]:
    """Statistics of every quantized input of a model, the worst (lowest SQNR) first."""
    operators = {
        name: operator
        for name, operator in quant_operators(model).items()
        if not isinstance(operator.input_scheme, FloatInput)
    }
    losses = {name: LayerLoss(name, operator.role) for name, operator in operators.items()}

    def hear(name: str, x: Tensor, x_hat: Tensor, statistics: ActivationResult | None) -> None:
        losses[name].add(x, x_hat, statistics)

    with torch.inference_mode(), listening(operators, hear):
        for batch in inputs:
            model(batch)
    return sorted((loss for loss in losses.values() if loss.calls), key=lambda loss: loss.sqnr_db)
