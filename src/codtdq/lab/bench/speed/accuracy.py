"""Scores beside times: every candidate on the same images, against their masks and against FP32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.data.dataset import Dataset
from codtdq.errors import ConfigError, DataError
from codtdq.evaluation import evaluate
from codtdq.lab.text import one_line
from codtdq.models.registry import ModelInfo, first_output

Logits = Callable[[Tensor], Tensor]  # images [1, 3, s, s] to mask logits [1, 1, h, w]


def require_trained(architecture: str, trained: bool) -> None:
    """Refuse to score random weights: whatever they give says nothing."""
    if not trained:
        raise ConfigError(
            f"accuracy needs trained weights, and {architecture} has random ones; "
            "pass --checkpoint FILE"
        )


def score_candidates(
    candidates: Mapping[str, Logits], info: ModelInfo, dataset: Dataset
) -> dict[str, dict[str, Any]]:
    """Return S, MAE and the mean |p - p_float| of each; the first candidate is the float network.

    p: sigmoid of the mask logits at the network's own resolution. A candidate that fails on an
    image has the reason instead.
    """
    found: dict[str, dict[str, Any]] = {}
    reference: list[Tensor] = []
    for index, (name, logits) in enumerate(candidates.items()):
        candidate = _Candidate(logits, info)
        try:
            metrics = evaluate(candidate, dataset, batch_size=1).metrics
        except Exception as error:
            if index == 0:
                raise
            found[name] = {"failed": one_line(error)}
            continue
        reference = reference or candidate.seen
        found[name] = {
            "dataset": dataset.name,
            "images": len(candidate.seen),
            "S": metrics["S"],
            "MAE": metrics["MAE"],
            "distance": _distance(candidate.seen, reference),
        }
    return found


class _Candidate(nn.Module):
    """Anything that turns images into mask logits, as the evaluation wants it; keeps its maps."""

    def __init__(self, logits: Logits, info: ModelInfo) -> None:
        super().__init__()
        self._logits = logits
        self.info = dataclasses.replace(info, mask_logits=first_output)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        logits = self._logits(images)
        self.seen.append(logits.float().sigmoid())
        return logits


def _distance(maps: list[Tensor], reference: list[Tensor]) -> float:
    if [each.shape for each in maps] != [each.shape for each in reference]:
        raise DataError("maps of two candidates differ in number or shape")
    parts = [(p - q).abs().mean() for p, q in zip(maps, reference)]
    return float(torch.stack(parts).mean())
