"""One picture, whatever it comes as: a file, a PIL image, an array or a tensor becomes pixels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from codtdq.data.imagefile import PIL_ERRORS, eight_bit, read_image
from codtdq.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

ImageLike: TypeAlias = "str | Path | Image.Image | NDArray[Any] | Tensor"
ACCEPTED = "a path, a PIL image, an array [H, W, 3], or a tensor [3, H, W]"


def to_pixels(image: ImageLike) -> NDArray[np.uint8]:
    """The pixels of a picture: uint8 [H, W, 3], RGB.

    image: a file; a PIL image; an array [H, W, 3], [H, W, 4] or [H, W] (gray); a tensor [3, H, W]
        or [H, W, 3], of which [3, H, 3] is taken as the former. Arrays and tensors hold uint8, or
        floats from 0 to 1. Transparency is dropped: what lies below it was photographed.
    """
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        return _of_pil(image)
    if _is_tensor(image):
        return _of_tensor(image)
    if isinstance(image, np.ndarray):
        return _of_array(image, "an array")
    raise DataError(f"image is a {type(image).__name__}; accepted: {ACCEPTED}")


def _of_pil(image: Image.Image) -> NDArray[np.uint8]:
    if not all(image.size):
        raise DataError(f"image is empty: {image.size[0]} x {image.size[1]} pixels")
    try:
        return eight_bit(image, "RGB", "image")
    except PIL_ERRORS as error:  # PIL decodes late: the file may be damaged or closed
        raise DataError(f"image cannot be decoded ({error}); open it again") from error


def _is_tensor(image: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor; without torch nobody can have made one, and it loads slowly."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)


def _of_tensor(image: Tensor) -> NDArray[np.uint8]:
    shape = list(image.shape)
    if len(shape) == 4:
        raise DataError(f"image is a batch {shape}; pass one picture of it, image[0]")
    if len(shape) != 3 or 3 not in (shape[0], shape[2]):
        raise DataError(f"image is a tensor {shape}; accepted: [3, H, W] or [H, W, 3]")
    plain = image.detach().cpu()
    if plain.is_floating_point():
        plain = plain.double()  # numpy has no bfloat16
    return _of_array((plain.permute(1, 2, 0) if shape[0] == 3 else plain).numpy(), "a tensor")


def _of_array(image: NDArray[Any], what: str) -> NDArray[np.uint8]:
    shape = list(image.shape)
    if not (image.ndim == 2 or (image.ndim == 3 and shape[2] in (3, 4))):
        hint = "; transpose it: image.transpose(1, 2, 0)" if shape[:1] == [3] else ""
        raise DataError(
            f"image is {what} {shape}; accepted: [H, W, 3], [H, W, 4] or [H, W] (gray){hint}"
        )
    if not image.size:
        raise DataError(f"image is empty: {what} {shape}")
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    return np.ascontiguousarray(_codes(image[..., :3], what))


def _codes(values: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Codes 0 to 255 of uint8 or of floats from 0 to 1."""
    if values.dtype == np.uint8:
        return values
    if not np.issubdtype(values.dtype, np.floating):
        raise DataError(f"image is {what} of {values.dtype}; accepted: uint8, or float from 0 to 1")
    if not np.isfinite(values).all():
        raise DataError(f"image is {what} with NaN or infinity; accepted: floats from 0 to 1")
    codes = np.rint(values.astype(np.float64) * 255)
    if codes.min() < 0 or codes.max() > 255:  # a resize may leave 1.0000001, which is 255 still
        raise DataError(
            f"image is {what} of floats from {values.min():g} to {values.max():g}; accepted: "
            "0 to 1; divide by 255, undo a normalisation, or pass uint8"
        )
    return codes.astype(np.uint8)
