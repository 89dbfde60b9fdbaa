"""The likelihood of a network's own mask, whose squared gradients say what moves the mask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.errors import CalibrationError


def sampled_label_loss(logits: Tensor, generator: torch.Generator) -> Tensor:
    """-log p(y), summed over pixels, of labels y drawn from the prediction itself.

    The expected squared gradient is the diagonal of the Fisher information, which is not zero,
    unlike the gradient of a divergence of the prediction from itself. logits: [B, 1, ...] are a
    Bernoulli mask, [B, K, ...] K classes.
    """
    values = logits.detach()
    if values.ndim < 2 or values.shape[1] == 1:
        y = torch.bernoulli(values.sigmoid(), generator=generator)
        return F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
    classes = values.movedim(1, -1).flatten(0, -2).softmax(-1)
    y = torch.multinomial(classes, 1, generator=generator)[:, 0]
    return F.cross_entropy(logits.movedim(1, -1).flatten(0, -2), y, reduction="sum")


def mask_logits_of(model: nn.Module, outputs: Any) -> Tensor:
    """The mask logits as the model declares them, else the first tensor of its output."""
    declared = getattr(getattr(model, "info", None), "mask_logits", None)
    if declared is not None:
        return declared(outputs)
    found = _first_tensor(outputs)
    if found is None:
        raise CalibrationError(f"the model returns {type(outputs).__name__} without any tensor")
    return found


def _first_tensor(outputs: Any) -> Tensor | None:
    if isinstance(outputs, Tensor):
        return outputs
    parts = outputs.values() if hasattr(outputs, "values") else outputs
    if isinstance(parts, str) or not hasattr(parts, "__iter__"):
        return None
    return next((t for t in map(_first_tensor, parts) if t is not None), None)
