"""Training losses by name: callables (outputs, mask, progress) -> scalar.

mask: float [B, 1, H, W] in [0, 1]; progress in [0, 1] is the finished part of the run.
The logits inside `outputs` may have any spatial size; they are resized to the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Any, Tensor, float], Tensor]

# CFRN's window sides, stated for its 384-pixel training images
_CFRN_WINDOWS, _CFRN_SIZE = (31, 51, 61, 27, 21), 384
# ESCNet's weights of m4 (coarsest) .. m1 (the prediction)
_ESCNET_FACTORS = (0.5, 0.7, 0.9, 1.1)


def cfrn_loss(outputs: Any, mask: Tensor, progress: float) -> Tensor:
    """CFRN: BCE + boundary-weighted IoU + UAL, on the full-size logits (first output).

    UAL's coefficient is (1 - cos(pi * progress)) / 2: certainty is asked for late.
    """
    logits = _fit(_first_tensor(outputs), mask)
    prob = torch.sigmoid(logits)
    ual_weight = (1.0 - math.cos(math.pi * progress)) / 2.0
    return (
        F.binary_cross_entropy_with_logits(logits, mask)
        + weighted_iou(prob, mask, boundary_weight(mask))
        + ual_weight * uncertainty(prob)
    )


def escnet_loss(outputs: Any, mask: Tensor, progress: float) -> Tensor:
    """ESCNet: factor * (BCE + soft IoU) on each of [m4, m3, m2, m1], plus Dice on the edge.

    outputs: (edge logits, [m4, m3, m2, m1] logits), as the network returns them.
    """
    edge_logits, masks = outputs
    assert len(masks) == len(_ESCNET_FACTORS)
    total = dice(torch.sigmoid(_fit(edge_logits, mask)), edge_of(mask))
    for factor, logits in zip(_ESCNET_FACTORS, masks):
        total = total + factor * _bce_iou(_fit(logits, mask), mask)
    return total


def bce_iou_loss(outputs: Any, mask: Tensor, progress: float) -> Tensor:
    """BCE + soft IoU on the logits, for a network that returns them alone or first."""
    return _bce_iou(_fit(_first_tensor(outputs), mask), mask)


def vit_cod_loss(outputs: Any, mask: Tensor, progress: float) -> Tensor:
    """ViT-COD: boundary-weighted BCE + IoU of the mask; half of it for coarse mask and edge.

    outputs: (mask, edge, coarse) logits. Edge and coarse mask are judged on their own grids: an
    edge cell holds some boundary, a coarse cell the share of the object in it.
    """
    mask_logits, edge_logits, coarse_logits = outputs
    logits = _fit(mask_logits, mask)
    # 1 + 5 |mean over 31 pixels - mask|, scaled as the windows of `boundary_weight`
    weight = (
        1.0 + 5.0 * (_box_mean(mask, _CFRN_WINDOWS[0], mask.shape[-1] / _CFRN_SIZE) - mask).abs()
    )
    bce = F.binary_cross_entropy_with_logits(logits, mask, reduction="none")
    main = (bce * weight).sum() / weight.sum() + weighted_iou(torch.sigmoid(logits), mask, weight)
    shares = F.adaptive_avg_pool2d(mask, coarse_logits.shape[-2:])
    edges = F.adaptive_max_pool2d(edge_of(mask), edge_logits.shape[-2:])
    return (
        main
        + 0.5 * _bce_iou(coarse_logits.float(), shares)
        + 0.5 * _edge_loss(edge_logits.float(), edges)
    )


LOSSES: dict[str, Loss] = {
    "cfrn": cfrn_loss,
    "escnet": escnet_loss,
    "bce-iou": bce_iou_loss,
    "vit-cod": vit_cod_loss,
}


def boundary_weight(mask: Tensor) -> Tensor:
    """Weight map [B, 1, H, W] >= 1 that is large near object boundaries.

    1 + 5 * sum_i w_i a_i with a_i = |box_i(mask) - mask| + 1e-6 over windows of five sizes and
    w_i = (a_i^(-4/3) / sum_j a_j^(-4/3))^1.75.
    """
    scale = mask.shape[-1] / _CFRN_SIZE
    maps = [(_box_mean(mask, k, scale) - mask).abs() + 1e-6 for k in _CFRN_WINDOWS]
    distance = torch.stack(maps)  # [5, B, 1, H, W]
    inverse = distance.pow(-4.0 / 3.0)
    share = (inverse / inverse.sum(0)).pow(1.75)
    return 1.0 + 5.0 * (share * distance).sum(0)


def weighted_iou(prob: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """1 - (inter + 1) / (union + 1) per image with pixel weights, averaged over the batch."""
    inter = (prob * mask * weight).sum((1, 2, 3))
    union = ((prob + mask) * weight).sum((1, 2, 3)) - inter
    return (1.0 - (inter + 1.0) / (union + 1.0)).mean()


def soft_iou(prob: Tensor, mask: Tensor, eps: float = 1e-6) -> Tensor:
    """1 - inter / union per image, averaged over the batch."""
    inter = (prob * mask).sum((1, 2, 3))
    union = (prob + mask).sum((1, 2, 3)) - inter
    return (1.0 - (inter + eps) / (union + eps)).mean()


def dice(prob: Tensor, target: Tensor, eps: float = 1.0) -> Tensor:
    """1 - 2 * inter / (sum + sum) per image, averaged over the batch."""
    inter = (prob * target).sum((1, 2, 3))
    total = (prob + target).sum((1, 2, 3))
    return (1.0 - (2.0 * inter + eps) / (total + eps)).mean()


def uncertainty(prob: Tensor) -> Tensor:
    """UAL: mean of 1 - |2p - 1|^2, zero when every pixel is decided."""
    return (1.0 - (2.0 * prob - 1.0).square()).mean()


def edge_of(mask: Tensor) -> Tensor:
    """Morphological gradient (3 x 3 dilation minus erosion) of a mask [B, 1, H, W]."""
    return F.max_pool2d(mask, 3, 1, 1) + F.max_pool2d(-mask, 3, 1, 1)


def _edge_loss(logits: Tensor, edges: Tensor) -> Tensor:
    """BCE in which edge cells, which are few, count as much as all others; plus Dice."""
    bce = F.binary_cross_entropy_with_logits(logits, edges, reduction="none")
    on = (bce * edges).sum() / (edges.sum() + 1.0)
    off = (bce * (1.0 - edges)).sum() / ((1.0 - edges).sum() + 1.0)
    return (on + off) / 2.0 + dice(torch.sigmoid(logits), edges)


def _bce_iou(logits: Tensor, mask: Tensor) -> Tensor:
    bce = F.binary_cross_entropy_with_logits(logits, mask)
    return bce + soft_iou(torch.sigmoid(logits), mask)


def _box_mean(mask: Tensor, window: int, scale: float) -> Tensor:
    """Return the mean over a window x window square (scaled, odd), zeros outside the image."""
    half = max(1, round(window // 2 * scale))
    return _line_mean(_line_mean(mask, half, -1), half, -2)


def _line_mean(values: Tensor, half: int, dim: int) -> Tensor:
    # differences of running sums cost the same for every window; pooling costs k per pixel
    length, side = values.shape[dim], 2 * half + 1
    pad = (half + 1, half) if dim == -1 else (0, 0, half + 1, half)
    sums = F.pad(values.double(), pad).cumsum(dim)
    window = sums.narrow(dim, side, length) - sums.narrow(dim, 0, length)
    return (window / side).to(values.dtype)


def _fit(logits: Tensor, mask: Tensor) -> Tensor:
    logits = logits.float()  # from bfloat16, if the network computes in it
    if logits.shape[-2:] == mask.shape[-2:]:
        return logits
    return F.interpolate(logits, mask.shape[-2:], mode="bilinear", align_corners=False)


def _first_tensor(outputs: Any) -> Tensor:
    while not isinstance(outputs, Tensor):
        outputs = outputs[0]
    return outputs
