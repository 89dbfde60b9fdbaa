"""Pictures inside a page: arrays as small data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from codtdq.metrics import foreground

LARGEST = 384  # pixels of the longer side
BAND = (255, 176, 0)  # boundary overlay: amber stands out of greens, browns and greys
# Dark purple to bright yellow, even in lightness and safe for colour-blind readers.
RAMP = ((13, 8, 135), (126, 3, 168), (204, 71, 120), (248, 149, 64), (240, 249, 33))


def photo_uri(image: NDArray[np.uint8]) -> str:
    """Return an RGB picture as JPEG."""
    return _uri(_small(Image.fromarray(image)), "JPEG", quality=85)


def mask_uri(mask: NDArray[np.uint8]) -> str:
    """Return a grey mask as PNG with 64 levels, which the eye cannot tell from 256."""
    levels = Image.fromarray(mask // 4 * 4 + np.where(mask >= 252, 3, 0).astype(np.uint8))
    return _uri(_small(levels), "PNG")


def band_uri(band: NDArray[np.uint8]) -> str:
    """Return the boundary band as a tint on nothing, to lie over a picture."""
    alpha = _small(Image.fromarray((band > 0).astype(np.uint8)), Image.Resampling.NEAREST)
    picture = Image.fromarray(np.asarray(alpha)).convert("P")
    picture.putpalette([0, 0, 0, *BAND])
    return _uri(picture, "PNG", transparency=bytes([0, 150]))


def outline_uri(mask: NDArray[np.uint8]) -> str:
    """Return the rim of a mask as a white line on nothing, to lie over a map."""
    inside = foreground(np.asarray(_small(Image.fromarray(mask), Image.Resampling.NEAREST)))
    padded = np.pad(inside, 1, mode="edge")
    kept = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    picture = Image.fromarray((inside & ~kept).astype(np.uint8)).convert("P")
    picture.putpalette([0, 0, 0, 255, 255, 255])
    return _uri(picture, "PNG", transparency=bytes([0, 230]))


def heat_uri(share: NDArray[np.uint8]) -> str:
    """Return a map of shares (255: all) in the ramp's colours; the less, the more transparent."""
    small = _small(Image.fromarray(share), Image.Resampling.NEAREST)
    picture = Image.fromarray(np.asarray(small) // 4).convert("P")  # 64 steps
    picture.putpalette(np.array([_colour(i / 63) for i in range(64)], np.uint8).tobytes())
    return _uri(picture, "PNG", transparency=bytes(round(255 * (i / 63) ** 0.6) for i in range(64)))


def drawing_uri(png: bytes) -> str:
    """Return a figure in 256 colours: a third of the size, and lines and letters look the same."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    return _uri(picture.quantize(256, dither=Image.Dither.NONE), "PNG")


def ramp_css() -> str:
    """Return the ramp as a CSS gradient, for the legend."""
    return "linear-gradient(90deg, " + ", ".join(f"rgb{colour}" for colour in RAMP) + ")"


def _colour(at: float) -> tuple[float, ...]:
    grid = np.linspace(0, 1, len(RAMP))
    return tuple(float(np.interp(at, grid, channel)) for channel in zip(*RAMP))


def _small(picture: Image.Image, how: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
    factor = min(1.0, LARGEST / max(picture.size))
    if factor == 1.0:
        return picture
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), how)


def _uri(picture: Image.Image, form: str, **options: object) -> str:
    stream = io.BytesIO()
    picture.save(stream, format=form, optimize=True, **options)
    kind = "jpeg" if form == "JPEG" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
