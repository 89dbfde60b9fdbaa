"""Validation sets of a run and their scores, all at training size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from codtdq.data.sample import Sample
from codtdq.lab.training.config import TrainConfig
from codtdq.lab.training.losses import bce_iou_loss
from codtdq.lab.training.sources import PairsSource, camosynth_validation
from codtdq.metrics import MetricSuite, foreground
from codtdq.models.registry import ModelInfo

_BATCH = 16


def validation_sets(config: TrainConfig) -> dict[str, list[Sample]]:
    """Return the validation images by set name: camosynth's val split and each holdout."""
    sets: dict[str, list[Sample]] = {}
    if config.val_images:
        sets["camosynth-val"] = camosynth_validation(config.val_images, config.size)
    for spec in config.sources:
        if spec.holdout:
            assert spec.path is not None
            source = PairsSource(Path(spec.path), config.size, holdout=spec.holdout)
            name = spec.name
            while name in sets:
                name += "-"
            sets[name] = source.validation()
    return sets


def to_inputs(images: np.ndarray, info: ModelInfo) -> Tensor:
    """uint8 [B, S, S, 3] -> normalised float [B, 3, S, S]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
    mean = torch.tensor(info.mean).view(1, 3, 1, 1) * 255.0
    std = torch.tensor(info.std).view(1, 3, 1, 1) * 255.0
    return ((pixels - mean) / std).contiguous()


def to_masks(masks: np.ndarray) -> Tensor:
    """uint8 [B, S, S] -> float [B, 1, S, S] in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(masks)).unsqueeze(1).float() / 255.0


@torch.inference_mode()
def validate(model: nn.Module, info: ModelInfo, samples: Sequence[Sample]) -> dict[str, float]:
    """Return the scores of an eval-mode model: S, weighted F, E, MAE, IoU at 0.5, BCE + IoU loss.

    Scores are those of soft maps at training size; they guide training and are no benchmark.
    """
    suite = MetricSuite()
    losses: list[float] = []
    overlaps: list[float] = []
    for first in range(0, len(samples), _BATCH):
        part = samples[first : first + _BATCH]
        masks = np.stack([sample.mask for sample in part if sample.mask is not None])
        target = to_masks(masks)
        logits = info.mask_logits(model(to_inputs(np.stack([s.image for s in part]), info)))
        if logits.shape[-2:] != target.shape[-2:]:
            logits = nn.functional.interpolate(logits, target.shape[-2:], mode="bilinear")
        losses += [float(bce_iou_loss(x[None], y[None], 1.0)) for x, y in zip(logits, target)]
        found, truth = logits > 0, torch.from_numpy(foreground(masks)).unsqueeze(1)
        union = (found | truth).sum((1, 2, 3)).clamp(min=1)
        overlaps += ((found & truth).sum((1, 2, 3)) / union).tolist()
        maps = (torch.sigmoid(logits[:, 0]) * 255.0).round().byte().numpy()
        for sample, prediction, mask in zip(part, maps, masks):
            suite.update(prediction, mask, sample.name)
    measured = suite.compute()
    scores = {key: measured[key] for key in ("S", "wF", "E_mean", "MAE")}
    scores |= {"IoU": float(np.mean(overlaps)), "loss": float(np.mean(losses))}
    return {key: round(value, 5) for key, value in scores.items()}
