"""Images with masks that are at hand in Python, as a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.data.dataset import check_limit, checked_index
from codtdq.data.sample import Sample
from codtdq.errors import DataError
from codtdq.imagefile import read_image, read_mask
from codtdq.pixels import ImageLike, to_pixels


class PairList:
    """Pairs of an image and its mask, each of any kind that `to_pixels` takes.

    Files of a pair are read on their stored grid. A mask is gray; more than half is the object.
    """

    def __init__(
        self, pairs: Iterable[Sequence[ImageLike]], *, name: str = "pairs", limit: int | None = None
    ) -> None:
        check_limit(limit)
        self._pairs = list(pairs)[:limit]
        self.name = name
        self.notes: list[str] = []
        for place, pair in enumerate(self._pairs):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise DataError(
                    f"item {place} of the data set is a {type(pair).__name__}; accepted: pairs "
                    "(image, mask)"
                )

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Sample:
        place = checked_index(index, len(self))
        image, mask = self._pairs[place]
        pixels = read_image(Path(image)) if isinstance(image, str | Path) else to_pixels(image)
        found = read_mask(Path(mask)) if isinstance(mask, str | Path) else _gray(mask)
        name = self.names()[place]
        if found.shape != pixels.shape[:2]:
            raise DataError(
                f"{name}: mask {list(found.shape)} of an image {list(pixels.shape[:2])}; "
                "both need one size"
            )
        return Sample(name, pixels, found)

    def names(self) -> list[str]:
        """Return the positions, as text."""
        return [str(place) for place in range(len(self))]


def _gray(mask: Any) -> NDArray[np.uint8]:
    """A mask at hand: uint8 [H, W]; truth values become 0 and 255."""
    values = np.asarray(mask)
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(255)
    gray: NDArray[np.uint8] = to_pixels(mask)[..., 0]
    if values.dtype == np.uint8 and gray.max(initial=0) == 1:
        raise DataError("mask values are 0 and 1, but 0 and 255 are expected; multiply by 255")
    return gray
