"""From logits to the 8-bit mask that a network's release would have written."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from codtdq.errors import DataError
from codtdq.models.registry import POSTPROCESSES


def to_mask(logits: Tensor, size: tuple[int, int], postprocess: str) -> NDArray[np.uint8]:
    """Turn mask logits [1, h, w] into uint8 [H, W].

    sigmoid-minmax: resize the logits, sigmoid, stretch to the full range, round (CFRN).
    sigmoid: sigmoid, resize the map with aligned corners, truncate (ESCNet, soft).
    binary: the same with the map cut at 0.5 before the resize (ESCNet as released).
    """
    if postprocess not in POSTPROCESSES:
        raise DataError(f"postprocess is {postprocess!r}; accepted: {', '.join(POSTPROCESSES)}")
    if not bool(torch.isfinite(logits).all()):
        raise DataError("the network returned NaN or infinite values; check weights and input")
    batch = logits.float().unsqueeze(0)  # [1, 1, h, w]
    if postprocess == "sigmoid-minmax":
        resized = F.interpolate(batch, size, mode="bilinear", align_corners=False)
        soft = resized.sigmoid()
        low, high = soft.amin(), soft.amax()
        values = torch.round((soft - low) / (high - low + 1e-8) * 255)
    else:
        soft = batch.sigmoid()
        if postprocess == "binary":
            soft = (soft >= 0.5).float()
        resized = F.interpolate(soft, size, mode="bilinear", align_corners=True)
        values = torch.floor(resized.clamp(0, 1) * 255)
    mask: NDArray[np.uint8] = values[0, 0].to(torch.uint8).numpy()
    return mask
