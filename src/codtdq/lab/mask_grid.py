"""Masks side by side in one picture: image and ground truth, then one column per method.

Drawn with Pillow: the demo has no need of matplotlib.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

CELL, GAP, SIDE = 148, 8, 118  # pixels: a picture, between pictures, the labels on the left
LINE = 16  # of text
TITLE_LETTERS, LABEL_LETTERS = 18, 14  # in a line, before a text is broken
INK, FAINT, PAPER = (24, 28, 36), (110, 118, 130), (255, 255, 255)


@dataclass(frozen=True)
class MaskRow:
    """One image with the masks that methods gave it."""

    name: str
    image: NDArray[np.uint8]  # [H, W, 3]
    truth: NDArray[np.uint8]  # [H, W]
    masks: dict[str, NDArray[np.uint8]]  # title of a method -> [H, W]
    scores: dict[str, float] = field(default_factory=dict)  # title -> S


def mask_grid(rows: Sequence[MaskRow]) -> Image.Image:
    """Draw a row per image; S stands under a mask where it is known.

    A name is written once for rows that follow each other.
    """
    titles = [_broken(title, TITLE_LETTERS) for title in ("image", "ground truth", *rows[0].masks)]
    head = LINE * max(title.count("\n") + 1 for title in titles) + 14
    foot = LINE if any(row.scores for row in rows) else 0
    width = SIDE + len(titles) * (CELL + GAP) + GAP
    step = CELL + GAP + foot
    canvas = Image.new("RGB", (width, head + len(rows) * step + GAP), PAPER)
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=14)
    for index, title in enumerate(titles):
        place = (_left(index) + CELL // 2, head // 2 + 2)
        draw.text(place, title, fill=INK, font=font, anchor="mm", align="center")
    previous = None
    for number, row in enumerate(rows):
        y = head + GAP // 2 + number * step
        if row.name != previous:
            draw.text((GAP, y + 2), _broken(row.name, LABEL_LETTERS), fill=INK, font=font)
            previous = row.name
        for index, (title, pixels) in enumerate(
            [("", row.image), ("", row.truth), *row.masks.items()]
        ):
            x = _left(index)
            tile = ImageOps.contain(Image.fromarray(pixels).convert("RGB"), (CELL, CELL))
            left, top = x + (CELL - tile.width) // 2, y + (CELL - tile.height) // 2
            canvas.paste(tile, (left, top))
            if index:  # masks are black at the rim: a hairline keeps them apart
                rim = (left, top, left + tile.width - 1, top + tile.height - 1)
                draw.rectangle(rim, outline=FAINT)
            if title in row.scores:
                place = (x + CELL // 2, y + CELL + LINE // 2)
                draw.text(place, f"S {row.scores[title]:.3f}", fill=INK, font=font, anchor="mm")
    return canvas


def _left(index: int) -> int:
    return SIDE + GAP + index * (CELL + GAP)


def _broken(text: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(text, letters)) or text
