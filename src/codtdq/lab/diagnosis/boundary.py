"""The boundary-heavy protocol (S4.4): band around an object, occupancy of boxes, labels of tokens.

Ground truth enters the package's analysis here and nowhere else, after every quantizer has run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.metrics import foreground

BOUNDARY, ELSEWHERE, NEITHER = 1, 0, -1


@dataclass(frozen=True, kw_only=True)
class BoundaryProtocol:
    """Radii in pixels of the mask, thresholds on the occupancy pi."""

    r_in: float = 3.0
    r_out: float = 3.0
    gamma_boundary: float = 0.1  # pi >= this: boundary-heavy
    gamma_nonboundary: float = 0.01  # pi <= this: non-boundary

    def __post_init__(self) -> None:
        if self.r_in < 0 or self.r_out < 0 or self.r_in + self.r_out == 0:
            raise ConfigError(
                f"radii are {self.r_in:g} and {self.r_out:g}; accepted: 0 or more, not both 0"
            )
        if not 0 <= self.gamma_nonboundary < self.gamma_boundary <= 1:
            raise ConfigError(
                f"gamma is ({self.gamma_boundary:g}, {self.gamma_nonboundary:g}); accepted: "
                "(boundary, non-boundary) with 0 <= non-boundary < boundary <= 1"
            )


def boundary_band(mask: NDArray[np.uint8], r_in: float, r_out: float) -> NDArray[np.bool_]:
    """B_r = Dilate(M, r_out) minus Erode(M, r_in) of a mask [H, W] (Eq. supp_boundary_band).

    The structuring element is the Euclidean disc of the radius. Nothing lies outside the image:
    an object that the frame cuts has no boundary there.
    """
    inside = foreground(mask)
    if inside.all() or not inside.any():
        return np.zeros(inside.shape, bool)
    dilated = distance_transform_edt(~inside) <= r_out
    eroded = distance_transform_edt(inside) > r_in
    band: NDArray[np.bool_] = dilated & ~eroded
    return band


def pixel_edges(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes (top, left, bottom, right) [M, 4] from shares of an image to its pixels, float64."""
    edges = boxes.double() * torch.tensor([height, width, height, width], dtype=torch.float64)
    whole = edges.round()
    return torch.where((edges - whole).abs() < 1e-9, whole, edges)


def box_means(band: NDArray[np.bool_], edges: Tensor) -> Tensor:
    """Return the mean of a band [H, W] over boxes: pi of Eq. supp_boundary_occupancy, float64 [M].

    edges: (top, left, bottom, right) in pixels, [M, 4]. Pixels that a box cuts count by the part
    inside: the summed-area table is linear between its nodes, so its interpolation is exact.
    """
    area = np.zeros((band.shape[0] + 1, band.shape[1] + 1))
    area[1:, 1:] = band.cumsum(0, dtype=np.float64).cumsum(1)
    table = torch.from_numpy(area)
    top, left, bottom, right = edges.unbind(-1)
    total = (
        _at(table, bottom, right)
        - _at(table, top, right)
        - _at(table, bottom, left)
        + _at(table, top, left)
    )
    return total / ((bottom - top) * (right - left))


def label(occupancy: Tensor, protocol: BoundaryProtocol) -> Tensor:
    """int8 labels of occupancies [N]: 1 boundary-heavy, 0 non-boundary, -1 between or NaN."""
    labels = torch.full(occupancy.shape, NEITHER, dtype=torch.int8)
    # box sums carry rounding errors of 1e-12; a token at the threshold belongs to it
    labels[occupancy <= protocol.gamma_nonboundary + 1e-9] = ELSEWHERE
    labels[occupancy >= protocol.gamma_boundary - 1e-9] = BOUNDARY
    return labels


def _at(table: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return a summed-area table [H + 1, W + 1] at fractional nodes."""
    row = y.long().clamp(0, table.shape[0] - 2)
    col = x.long().clamp(0, table.shape[1] - 2)
    v, u = y - row, x - col
    upper = table[row, col] * (1 - u) + table[row, col + 1] * u
    lower = table[row + 1, col] * (1 - u) + table[row + 1, col + 1] * u
    return upper * (1 - v) + lower * v
