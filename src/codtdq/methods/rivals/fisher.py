"""Inputs of operators and gradients of the mask's likelihood at sampled output positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.methods.likelihood import mask_logits_of, sampled_label_loss
from codtdq.methods.rivals.receptive_fields import Fields, fields_at, outputs_at, sample_positions
from codtdq.methods.workbench import Workbench, count_used
from codtdq.operators.observing import run_model
from codtdq.planning.plan import Site
from codtdq.progress import track

FISHER, MSE = "fisher", "mse"


@dataclass
class OperatorSample:
    """What a search needs to know of one operator."""

    fields: Fields  # inputs of R sampled output positions
    gradients: Tensor | None  # [R, O] dLoss/dO there; None: all outputs count alike
    high: Tensor  # [] largest input seen at any position
    absmax: Tensor  # [] largest magnitude

    @property
    def silent(self) -> bool:
        """Whether no gradient has reached the operator."""
        return self.gradients is None


@dataclass
class _Gather:
    fields: list[Fields] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    low: float = float("inf")
    high: float = float("-inf")

    def sample(self, name: str) -> OperatorSample:
        if not self.fields:
            raise CalibrationError(f"no calibration batch reached {name}")
        if not self.low > float("-inf") or not self.high < float("inf"):
            raise CalibrationError(f"{name} got NaN or infinite inputs during calibration")
        gradients = torch.cat(self.gradients) if self.gradients else None
        if gradients is not None and not bool(gradients.isfinite().all()):
            raise CalibrationError(f"{name} got NaN or infinite gradients during calibration")
        if gradients is not None and not bool(gradients.any()):
            gradients = None
        high, low = torch.tensor(self.high), torch.tensor(self.low)
        return OperatorSample(
            Fields.join(self.fields), gradients, high, torch.maximum(high.abs(), low.abs())
        )


def sample_operators(
    bench: Workbench, *, metric: str, images: int, positions: int
) -> dict[str, OperatorSample]:
    """One forward, and for the Fisher metric one backward, per calibration batch.

    Only the sampled rows outlive a batch; the graph of one batch is all that is held at a time.
    """
    gathers = {site.name: _Gather() for site in bench.sites}
    generator, labels = bench.generator("positions"), bench.generator("labels")
    handles = [
        site.module.register_forward_hook(
            _hook(site, gathers[site.name], metric == FISHER, images, positions, generator),
            with_kwargs=True,
        )
        for site in bench.sites
    ]
    try:
        with torch.set_grad_enabled(metric == FISHER):
            for batch in track(
                bench.batches(images), "sampling outputs", count_used(bench.calibration, images)
            ):
                outputs = run_model(bench.model, batch)
                if metric == FISHER:
                    loss = sampled_label_loss(mask_logits_of(bench.model, outputs), labels)
                    if not loss.requires_grad:
                        raise CalibrationError(
                            "the mask has no gradient with respect to any operator; the model "
                            "detaches it: set metric='mse'"
                        )
                    loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    return {name: gather.sample(name) for name, gather in gathers.items()}


def _hook(
    site: Site,
    gather: _Gather,
    track_gradient: bool,
    images: int,
    positions: int,
    generator: torch.Generator,
) -> Callable[..., Tensor | None]:
    def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        x = (args[0] if args else kwargs["input"]).detach()
        low, high = x.aminmax()
        gather.low, gather.high = min(gather.low, float(low)), max(gather.high, float(high))
        picked = sample_positions(module, x, output, positions, images, generator)
        # copied at once: what follows may change input and output in place
        gather.fields.append(fields_at(module, x, output.detach(), picked))
        if not track_gradient:
            return None
        row = len(gather.gradients)
        gather.gradients.append(torch.zeros(len(picked), site.float_weight.shape[0]))
        if not output.requires_grad:  # the first operator: parameters have no gradients
            output = output.detach().requires_grad_().clone()  # no leaf: may be changed in place
        if not output.requires_grad:  # inside a no_grad block of the model
            return None

        def keep(gradient: Tensor) -> None:
            gather.gradients[row] = outputs_at(module, gradient, picked)

        output.register_hook(keep)
        return output

    return hook
