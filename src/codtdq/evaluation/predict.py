"""One image in, one mask out; and the forward pass that evaluation shares."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codtdq.data.pixels import ImageLike, to_pixels
from codtdq.data.transforms import to_input
from codtdq.errors import ConfigError
from codtdq.evaluation.masks import to_mask
from codtdq.models.registry import ModelInfo, first_output


def info_of(model: nn.Module, input_size: int | None = None) -> ModelInfo:
    """The declaration of a model; a model without one needs an input size."""
    info = getattr(model, "info", None)
    if isinstance(info, ModelInfo):
        return info
    if input_size is None:
        raise ConfigError(
            f"{type(model).__name__} declares no input size; build it with codtdq.create_model, "
            "register it with codtdq.register_model, or pass input_size=..."
        )
    return ModelInfo(
        name=type(model).__name__, description="", input_size=input_size, mask_logits=first_output
    )


def mask_logits(model: nn.Module, info: ModelInfo, inputs: Tensor) -> Tensor:
    """Mask logits [B, 1, h, w] of inputs [B, 3, size, size], without gradients, on the CPU.

    Inputs go to where the model is.
    """
    tensor = next(itertools.chain(model.parameters(), model.buffers()), inputs)
    with torch.inference_mode():
        return info.mask_logits(model(inputs.to(tensor.device))).cpu()


def predict(
    model: nn.Module,
    image: ImageLike,
    *,
    postprocess: str | None = None,
    input_size: int | None = None,
) -> NDArray[np.uint8]:
    """Segment one image; returns a uint8 mask [H, W] of its size.

    image: a file, a PIL image, an array [H, W, 3], [H, W, 4] or [H, W], or a tensor [3, H, W] or
        [H, W, 3]; uint8, or float from 0 to 1. Transparency is dropped.
    postprocess, input_size: instead of those that the model declares.
    """
    return predict_batch(model, [image], postprocess=postprocess, input_size=input_size)[0]


def predict_batch(
    model: nn.Module,
    images: Sequence[ImageLike],
    *,
    postprocess: str | None = None,
    input_size: int | None = None,
) -> list[NDArray[np.uint8]]:
    """Segment several images of any kinds and sizes in one forward pass."""
    info = info_of(model, input_size)
    size = input_size or info.input_size
    pixels = [to_pixels(image) for image in images]
    inputs = torch.stack([to_input(each, size, info.mean, info.std) for each in pixels])
    logits = mask_logits(model, info, inputs)
    kind = postprocess or info.postprocess
    shapes = [(each.shape[0], each.shape[1]) for each in pixels]
    return [to_mask(one, shape, kind) for one, shape in zip(logits, shapes)]
