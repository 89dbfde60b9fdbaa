"""From logits to the 8-bit mask that a network's release would have written."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from codtdq.errors import ConfigError, DataError
from codtdq.models.registry import POSTPROCESSES
from codtdq.numerics.threads import one_thread

SHOWN_SIDE = 320  # longest side in pixels of a mask in a notebook
SHOWN_MASKS = 24  # of several


class Mask(np.ndarray[Any, np.dtype[np.uint8]]):
    """A mask: an array, uint8 [H, W], that a notebook shows as a picture."""

    def _repr_html_(self) -> str | None:
        if self.ndim != 2 or self.dtype != np.uint8 or not self.size:
            return None  # a part of a mask, or what was computed from one
        return picture_html(self)


class Masks(list[Mask]):
    """The masks of several images in their order; `names` says of which."""

    def __init__(self, masks: Iterable[Mask], names: Iterable[str]) -> None:
        super().__init__(masks)
        self.names = list(names)

    def __repr__(self) -> str:
        first = ", ".join(
            f"{name} {mask.shape[0]} x {mask.shape[1]}" for name, mask in zip(self.names[:3], self)
        )
        return f"{len(self)} masks ({first}{', ...' if len(self) > 3 else ''})"

    def _repr_html_(self) -> str:
        shown = "".join(
            f'<figure style="display:inline-block;margin:4px">{picture_html(mask)}'
            f"<figcaption>{html.escape(name)}</figcaption></figure>"
            for name, mask in zip(self.names[:SHOWN_MASKS], self)
        )
        left = len(self) - SHOWN_MASKS
        return shown + (f"<p>and {left} more</p>" if left > 0 else "")


def picture_html(mask: NDArray[Any]) -> str:
    """A mask as an image of a page, small enough to look at."""
    picture = Image.fromarray(np.asarray(mask))
    picture.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f"{mask.shape[0]} x {mask.shape[1]}"
    return f'<img alt="mask, {size}" title="{size}" src="data:image/png;base64,{data}">'


@one_thread()  # torch cuts a sigmoid by threads, and its last digits with it
def to_mask(
    logits: Tensor, size: tuple[int, int], postprocess: str, threshold: float | None = None
) -> Mask:
    """Turn mask logits [1, h, w] into uint8 [H, W].

    sigmoid-minmax: resize the logits, sigmoid, stretch to the full range, round (CFRN).
    sigmoid: sigmoid, resize the map with aligned corners, truncate (ESCNet, soft).
    binary: the same with the map cut at 0.5 before the resize (ESCNet as released).
    threshold: part of the full range from which a pixel is the object: 255, and 0 elsewhere.
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
    if threshold is not None:
        mask = np.where(mask >= check_threshold(threshold) * 255, 255, 0).astype(np.uint8)
    return mask.view(Mask)


def check_threshold(threshold: float) -> float:
    """A threshold that cuts: more than 0, at most 1."""
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold:g}; accepted: more than 0, at most 1")
    return threshold
