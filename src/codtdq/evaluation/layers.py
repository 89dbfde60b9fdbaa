"""Which layers lose most: the quantizer's own statistics, averaged over images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from codtdq.numerics import ActivationResult
from codtdq.operators import QuantOperator, SimOperator, quant_operators, sim_operators


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

    def add(self, result: ActivationResult) -> None:
        """Take in one quantized input."""
        self._average(
            sqnr_db=result.sqnr_db,
            zero_mass=result.zero_mass.mean().item(),
            clip_rate=result.clip_rate.mean().item(),
            eta=result.eta.median().item(),
        )

    def add_pair(self, exact: Tensor, x_hat: Tensor) -> None:
        """Take in one input of a method that has no groups, steps or radii to tell of."""
        noise = (exact - x_hat).double().square().sum()
        power = exact.double().square().sum()
        sqnr = 10 * torch.log10(power / noise.clamp(min=1e-30)).clamp(-300, 300).item()
        self._average(
            sqnr_db=sqnr,
            zero_mass=(x_hat == 0).double().mean().item(),
            clip_rate=float("nan"),
            eta=float("nan"),
        )

    def _average(self, **values: float) -> None:
        self.calls += 1
        for field, value in values.items():
            mean = getattr(self, field)
            setattr(self, field, mean + (value - mean) / self.calls)


def layer_losses(model: nn.Module, inputs: Iterable[Tensor]) -> list[LayerLoss]:
    """Statistics of every quantized input of a model, the worst (lowest SQNR) first."""
    operators = {n: op for n, op in quant_operators(model).items() if op.site.activation}
    losses = {name: LayerLoss(name, op.site.role) for name, op in operators.items()}
    names: dict[nn.Module, str] = {op: name for name, op in operators.items()}
    simulated = sim_operators(model)
    losses |= {name: LayerLoss(name, op.role) for name, op in simulated.items()}
    names |= {op: name for name, op in simulated.items()}

    def listen(module: nn.Module, result: ActivationResult) -> None:
        assert isinstance(module, QuantOperator)
        losses[names[module]].add(result)

    def listen_to_pair(module: SimOperator, x: Tensor, x_hat: Tensor) -> None:
        losses[names[module]].add_pair(module.input_quantizer.reference(x), x_hat)

    try:
        for operator in operators.values():
            operator.listener = listen
        for sim in simulated.values():
            sim.listener = listen_to_pair
        with torch.inference_mode():
            for batch in inputs:
                model(batch)
    finally:
        for operator in operators.values():
            operator.listener = None
        for sim in simulated.values():
            sim.listener = None
    return sorted((loss for loss in losses.values() if loss.calls), key=lambda loss: loss.sqnr_db)
