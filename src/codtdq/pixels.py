"""One picture, whatever it comes as: a file, a PIL image, an array or a tensor becomes pixels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError, UnsupportedError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

ImageLike: TypeAlias = "str | Path | Image.Image | NDArray[Any] | Tensor"
ACCEPTED = "a path, a PIL image, an array [H, W, 3], or a tensor [3, H, W]"


def to_pixels(image: ImageLike) -> NDArray[np.uint8]:
    """The pixels of a picture: uint8 [H, W, 3], RGB.

    image: a file; a PIL image; an array [H, W, 3], [H, W, 4] or [H, W] (gray, also [H, W, 1]); a
        tensor of these shapes or with the channels first, of which [3, H, 3] is taken as the
        latter. Arrays and tensors hold uint8, or floats from 0 to 1. Transparency is dropped:
        what lies below it was photographed. Files and PIL images are turned upright.
    """
    if isinstance(image, str | Path):
        return _of_file(Path(image))
    if _is_picture(image):
        return _of_pil(image)
    if _is_tensor(image):
        return _of_tensor(image)
    if isinstance(image, np.ndarray):
        return _of_array(image, "an array")
    raise DataError(f"image is a {type(image).__name__}; accepted: {ACCEPTED}")


def _of_file(path: Path) -> NDArray[np.uint8]:
    try:
        from codtdq.imagefile import read_upright
    except ModuleNotFoundError as error:  # arrays need no Pillow, files do
        raise UnsupportedError(
            f"{path}: image files are read with Pillow, which is not installed; pass an array, or "
            "run pip install pillow"
        ) from error
    return read_upright(path)


def _is_picture(image: object) -> TypeGuard[Image.Image]:
    """Whether it is an image of PIL; without PIL nobody can have made one."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(image, pil.Image)


def _of_pil(image: Image.Image) -> NDArray[np.uint8]:
    from PIL import ImageOps

    from codtdq.imagefile import PIL_ERRORS, eight_bit

    if not all(image.size):
        raise DataError(f"image is empty: {image.size[0]} x {image.size[1]} pixels")
    try:
        return eight_bit(ImageOps.exif_transpose(image), "RGB", "image")
    except PIL_ERRORS as error:  # PIL decodes late: the file may be damaged or closed
        raise DataError(f"image cannot be decoded ({error}); open it again") from error


def _is_tensor(image: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor; without torch nobody can have made one, and it loads slowly."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)


def _of_tensor(image: Tensor) -> NDArray[np.uint8]:
    shape = list(image.shape)
    if len(shape) == 4:
        raise DataError(
            f"image is a batch {shape}; pass one picture of it, image[0], or list(image)"
        )
    if len(shape) not in (2, 3):
        raise DataError(f"image is a tensor {shape}; accepted: [3, H, W], [H, W, 3] or [H, W]")
    plain = image.detach().cpu()
    if plain.is_floating_point():
        plain = plain.double()  # numpy has no bfloat16
    if len(shape) == 3 and (shape[0] == 3 or (shape[0] in (1, 4) and shape[2] not in (3, 4))):
        plain = plain.permute(1, 2, 0)
    return _of_array(plain.numpy(), "a tensor")


def _of_array(image: NDArray[Any], what: str) -> NDArray[np.uint8]:
    shape = list(image.shape)
    if not (image.ndim == 2 or (image.ndim == 3 and shape[2] in (1, 3, 4))):
        hint = "; transpose it: image.transpose(1, 2, 0)" if shape[:1] == [3] else ""
        raise DataError(
            f"image is {what} {shape}; accepted: [H, W, 3], [H, W, 4] or [H, W] (gray){hint}"
        )
    if not image.size:
        raise DataError(f"image is empty: {what} {shape}")
    if image.ndim == 2 or shape[2] == 1:
        image = np.repeat(image.reshape(shape[0], shape[1], 1), 3, axis=2)
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
