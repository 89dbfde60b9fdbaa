"""Reading image and mask files; every failure becomes a DataError of one line.

Where an image comes with a mask, its EXIF orientation is ignored: masks were drawn on the stored
pixel grid and carry no EXIF themselves, so turning only the image would break the pair, and
published results were computed on the stored grid. An image that comes alone is turned upright, as
every viewer shows it.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from codtdq.errors import DataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# What bytes of unknown origin may be: these decode in this process and start no other program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP")
# What PIL raises for damaged files, depending on the format and on where the damage is.
PIL_ERRORS = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)


def list_image_files(folder: Path) -> list[Path]:
    """Return the image files directly inside a folder, sorted by name, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if is_image_file(path))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({_reason(error)})") from error


def is_image_file(path: Path) -> bool:
    """Whether a path is a visible file with a known image extension."""
    return (
        path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def header_size(path: Path) -> tuple[int, int]:
    """Read (width, height) from the header alone; DataError if even that is unreadable."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            return int(width), int(height)
    except PIL_ERRORS as error:
        raise DataError(f"{path}: not a readable image ({_reason(error)})") from error


def read_image(path: Path) -> NDArray[np.uint8]:
    """Decode an image file as it is stored: uint8 [H, W, 3], RGB; transparency is dropped.

    Of an animation or a file of several pages it is the first picture.
    """
    return _decode(path, "RGB")


def read_upright(path: Path) -> NDArray[np.uint8]:
    """Decode an image file as `read_image` does, turned as its EXIF orientation says."""
    return _decode(path, "RGB", upright=True)


def decode_upright(data: bytes, name: str, *, pixels: int | None = None) -> NDArray[np.uint8]:
    """Decode the bytes of an image file as `read_upright` does.

    name: for messages. pixels: refuse an image of more, by its header, before anything is decoded.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if pixels is not None and width * height > pixels:
                raise DataError(
                    f"{name} has {width} x {height} pixels; accepted: {pixels} at most; scale it "
                    "down"
                )
            return eight_bit(ImageOps.exif_transpose(image), "RGB", name)
    except PIL_ERRORS as error:
        raise DataError(
            f"{name} holds no image that can be decoded ({_reason(error)}); accepted: "
            f"{', '.join(FORMATS)}"
        ) from error


def read_mask(path: Path) -> NDArray[np.uint8]:
    """Decode a mask file as gray: uint8 [H, W].

    A mask that holds only 0 and 1 is refused: everything downstream calls gray > 128 the object,
    so it would silently count as empty.
    """
    mask = _decode(path, "L")
    if mask.max(initial=0) == 1:
        raise DataError(
            f"{path}: mask values are 0 and 1, but 0 and 255 are expected; multiply them by 255"
        )
    return mask


def read_map(path: Path) -> NDArray[np.uint8]:
    """Decode a predicted map as gray: uint8 [H, W]; any range of values will do."""
    return _decode(path, "L")


def _decode(path: Path, mode: str, *, upright: bool = False) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            return eight_bit(ImageOps.exif_transpose(image) if upright else image, mode, path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except PIL_ERRORS as error:
        raise DataError(
            f"{path}: cannot be decoded ({_reason(error)}); replace the file or remove it"
        ) from error


def eight_bit(image: Image.Image, mode: str, name: object) -> NDArray[np.uint8]:
    """Convert to 8 bit; PIL alone would clip deeper pixels, turning the image all white.

    mode: "RGB" gives [H, W, 3], "L" [H, W]; transparency is dropped. name: for messages.
    """
    if image.mode in ("I", "F"):
        raise DataError(f"{name}: 32-bit pixels have no fixed range; save the file with 8 bits")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image, dtype=np.uint16) // 257).astype(np.uint8))
    return np.array(image if image.mode == mode else image.convert(mode), dtype=np.uint8)


def _reason(error: BaseException) -> str:
    """The first line of an error, without the path that PIL and the OS like to repeat."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    lines = str(error).splitlines() or [type(error).__name__]
    return "unknown format" if lines[0].startswith("cannot identify") else lines[0]
