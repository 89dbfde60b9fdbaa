"""One image with its mask: what every data set in this package hands out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sample:
    """One image and, where there is one, the mask of its camouflaged objects.

    name: unique inside the data set, without extension; predictions are saved under it.
    image: uint8 [H, W, 3], RGB.
    mask: uint8 [H, W]; object 255, background 0 (files may hold gray edges); None without mask.
    """

    name: str
    image: NDArray[np.uint8]
    mask: NDArray[np.uint8] | None = None
