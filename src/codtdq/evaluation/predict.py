"""Images in, masks out; and the forward pass that evaluation shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor, nn

from codtdq.data.dataset import Dataset
from codtdq.data.images import ImageFolder, ImageList
from codtdq.data.transforms import to_input
from codtdq.errors import ConfigError
from codtdq.evaluation.masks import Mask, Masks, to_mask
from codtdq.models.registry import ModelInfo, first_output
from codtdq.numerics.threads import one_thread
from codtdq.pixels import ImageLike, to_pixels


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
        output = model(inputs.to(tensor.device))
        with one_thread():
            return info.mask_logits(output).cpu()


@overload
def predict(
    model: nn.Module,
    images: Image | NDArray[Any] | Tensor,
    *,
    postprocess: str | None = ...,
    threshold: float | None = ...,
    input_size: int | None = ...,
) -> Mask: ...
@overload
def predict(
    model: nn.Module,
    images: str | Path,
    *,
    postprocess: str | None = ...,
    threshold: float | None = ...,
    input_size: int | None = ...,
) -> Any: ...
@overload
def predict(
    model: nn.Module,
    images: Dataset | Sequence[ImageLike],
    *,
    postprocess: str | None = ...,
    threshold: float | None = ...,
    input_size: int | None = ...,
) -> Masks: ...
def predict(
    model: nn.Module,
    images: Any,
    *,
    postprocess: str | None = None,
    threshold: float | None = None,
    input_size: int | None = None,
) -> Any:
    """Segment one image, or several; returns a uint8 mask [H, W] of its size, or a list of them.

    images: one image: a file, a PIL image, an array [H, W, 3], [H, W, 4] or [H, W], or a tensor of
        these shapes or with the channels first; uint8, or float from 0 to 1; transparency is
        dropped. Or several: a folder, a glob pattern, a data set, or a list of the former.
    threshold: part of the full range from which a pixel is the object: a mask of 0 and 255.
    postprocess, input_size: instead of those that the model declares.
    """
    options: dict[str, Any] = {
        "postprocess": postprocess,
        "threshold": threshold,
        "input_size": input_size,
    }
    several = _several(images)
    if several is None:
        return predict_batch(model, [images], **options)[0]
    samples = (several[index] for index in range(len(several)))
    masks = [predict_batch(model, [sample.image], **options)[0] for sample in samples]
    return Masks(masks, several.names())


def _several(images: Any) -> Dataset | None:
    """The data set that several images are; None: it is one image."""
    if isinstance(images, Dataset):
        return images
    if isinstance(images, str | Path):
        path = Path(images)
        folder = path.is_dir() or (not path.exists() and has_magic(str(images)))
        return ImageFolder(images) if folder else None
    if isinstance(images, Iterable) and not isinstance(images, Tensor | np.ndarray | Image):
        return ImageList(images)
    return None


def predict_batch(
    model: nn.Module,
    images: Sequence[ImageLike],
    *,
    postprocess: str | None = None,
    threshold: float | None = None,
    input_size: int | None = None,
) -> list[Mask]:
    """Segment several images of any kinds and sizes in one forward pass."""
    info = info_of(model, input_size)
    size = input_size or info.input_size
    pixels = [to_pixels(image) for image in images]
    inputs = torch.stack([to_input(each, size, info.mean, info.std) for each in pixels])
    logits = mask_logits(model, info, inputs)
    kind = postprocess or info.postprocess
    shapes = [(each.shape[0], each.shape[1]) for each in pixels]
    return [to_mask(one, shape, kind, threshold) for one, shape in zip(logits, shapes)]
