"""A picture of masks side by side: image, ground truth, one column per setting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from codtdq.io import atomic_path

CELL, GAP, HEAD, SIDE = 148, 8, 30, 118
INK, FAINT, PAPER = (24, 28, 36), (110, 118, 130), (255, 255, 255)


@dataclass(frozen=True)
class Panel:
    """One row of the gallery."""

    label: str
    image: NDArray[np.uint8]  # [H, W, 3]
    truth: NDArray[np.uint8]  # [H, W]
    masks: dict[str, NDArray[np.uint8]]  # setting -> [H, W]


def save_gallery(path: Path, panels: list[Panel]) -> Path:
    """Draw the rows under one header and write a PNG atomically."""
    columns = ["image", "ground truth", *panels[0].masks]
    width = SIDE + len(columns) * (CELL + GAP) + GAP
    height = HEAD + len(panels) * (CELL + GAP) + GAP
    canvas = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=14)
    for index, title in enumerate(columns):
        x = SIDE + GAP + index * (CELL + GAP) + CELL // 2
        draw.text((x, HEAD // 2 + 2), title, fill=INK, font=font, anchor="mm")
    previous = None
    for row, panel in enumerate(panels):
        y = HEAD + GAP // 2 + row * (CELL + GAP)
        if panel.label != previous:
            draw.text((GAP, y + 2), panel.label, fill=INK, font=font)
            previous = panel.label
        for index, pixels in enumerate([panel.image, panel.truth, *panel.masks.values()]):
            tile = Image.fromarray(pixels).convert("RGB").resize((CELL, CELL))
            x = SIDE + GAP + index * (CELL + GAP)
            canvas.paste(tile, (x, y))
            if index:  # masks are black at the rim: a hairline keeps them apart
                draw.rectangle((x, y, x + CELL - 1, y + CELL - 1), outline=FAINT)
    with atomic_path(path) as temporary:
        canvas.save(temporary, format="PNG")
    return path
