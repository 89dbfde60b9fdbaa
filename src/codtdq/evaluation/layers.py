"""Which layers lose most: the quantizer's own statistics, averaged over images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from codtdq.convert import quant_operators
from codtdq.layers import QuantOperator
from codtdq.quantizer import ActivationResult


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
        self.calls += 1
        for field, value in (
            ("sqnr_db", result.sqnr_db),
            ("zero_mass", result.zero_mass.mean().item()),
            ("clip_rate", result.clip_rate.mean().item()),
            ("eta", result.eta.median().item()),
        ):
            mean = getattr(self, field)
            setattr(self, field, mean + (value - mean) / self.calls)


def layer_losses(model: nn.Module, inputs: Iterable[Tensor]) -> list[LayerLoss]:
    """Statistics of every quantized input of a model, the worst (lowest SQNR) first."""
    operators = {n: op for n, op in quant_operators(model).items() if op.site.activation}
    losses = {name: LayerLoss(name, op.site.role) for name, op in operators.items()}
    names = {op: name for name, op in operators.items()}

    def listen(module: nn.Module, result: ActivationResult) -> None:
        assert isinstance(module, QuantOperator)
        losses[names[module]].add(result)

    try:
        for operator in operators.values():
            operator.listener = listen
        with torch.inference_mode():
            for batch in inputs:
                model(batch)
    finally:
        for operator in operators.values():
            operator.listener = None
    return sorted((loss for loss in losses.values() if loss.calls), key=lambda loss: loss.sqnr_db)
