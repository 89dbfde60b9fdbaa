"""Which part of the image a value stands for: ids of boxes, merged and resampled.

A place tensor has the shape of an activation and holds, as a float, the number of a box in one
table, or -1 where a value has no place (padding, constants, pooled values).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOWHERE = -1.0
_TOUCH = 1e-6  # shares of the image; smaller gaps are rounding
_LEVELS = 2**15  # edges that agree to this share of the image are the same; four fit an int64


class BoxTable:
    """Boxes (top, left, bottom, right) as shares of the image, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._boxes = torch.empty(0, 4, dtype=torch.float64)

    def tensor(self) -> Tensor:
        """Return all boxes: float64 [M, 4]."""
        return self._boxes

    def grid(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Return the places [H, W] of the cells between row edges [H, 2] and column edges [W, 2].

        A row or column without edges (NaN) is nowhere.
        """
        size = (len(rows), len(cols))
        top, bottom = (edge[:, None].expand(size) for edge in rows.unbind(-1))
        left, right = (edge[None, :].expand(size) for edge in cols.unbind(-1))
        return self.add(torch.stack([top, left, bottom, right], -1))

    def add(self, boxes: Tensor) -> Tensor:
        """Return the places [...] of boxes [..., 4]; one with a NaN is nowhere."""
        flat = boxes.reshape(-1, 4)
        known = ~flat.isnan().any(-1)
        levels = (flat[known] * _LEVELS).round().long()  # equal up to rounding is equal
        keys = levels[:, 0]
        for column in (1, 2, 3):
            keys = keys * (2 * _LEVELS) + levels[:, column]
        numbers: list[int] = []
        fresh: list[int] = []
        for index, key in enumerate(keys.tolist()):
            number = self._numbers.setdefault(key, len(self._numbers))
            if number == len(self._boxes) + len(fresh):
                fresh.append(index)
            numbers.append(number)
        self._boxes = torch.cat([self._boxes, flat[known][fresh]])
        places = torch.full((len(flat),), NOWHERE)
        places[known] = torch.tensor(numbers, dtype=places.dtype)
        return places.reshape(boxes.shape[:-1])

    def of(self, places: Tensor) -> Tensor:
        """Return the boxes [..., 4] of places; NaN for nowhere."""
        boxes = torch.cat([self.tensor(), torch.full((1, 4), torch.nan, dtype=torch.float64)])
        return boxes[places.long()]  # -1 is the last row


def agree(places: Tensor, dim: int) -> Tensor:
    """The one place that all placed values along `dim` share (kept as size 1), else nowhere."""
    high = places.amax(dim, keepdim=True)
    low = places.masked_fill(places == NOWHERE, torch.inf).amin(dim, keepdim=True)
    return torch.where(high == low, high, torch.full_like(high, NOWHERE))


def unite(places: Tensor, dim: int, table: BoxTable) -> Tensor:
    """As `agree`, but places that tile a box without gap or overlap become that box.

    This is what patch merging does: four neighbouring cells become the cell of one token.
    """
    agreed = agree(places, dim)
    open_ = ((agreed == NOWHERE) & (places != NOWHERE).any(dim, keepdim=True)).squeeze(dim)
    if not bool(open_.any()):
        return agreed
    rows = places.movedim(dim, -1)[open_]  # [n, C]
    distinct = torch.unique(rows, dim=1)  # equal channels once; [n, m]
    ordered = distinct.sort(dim=1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    boxes = table.of(ordered.masked_fill(repeated, NOWHERE))  # [n, m, 4]
    known = ~boxes[..., 0].isnan()
    low = boxes.nan_to_num(torch.inf).amin(1)
    high = boxes.nan_to_num(-torch.inf).amax(1)
    union = torch.stack([low[:, 0], low[:, 1], high[:, 2], high[:, 3]], -1)
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    covered = torch.where(known, area, 0.0).sum(1)
    whole = (union[:, 2] - union[:, 0]) * (union[:, 3] - union[:, 1])
    union[(covered - whole).abs() > _TOUCH * whole.clamp(min=_TOUCH)] = torch.nan
    result = agreed.squeeze(dim).clone()
    result[open_] = table.add(union)
    return result.unsqueeze(dim)


@dataclass(frozen=True)
class Cells:
    """Where the cells of an output grid lie on the input grid, along one axis, in input cells."""

    start: float
    width: float

    @classmethod
    def of_kernel(cls, kernel: int, stride: int, padding: int, dilation: int) -> Cells:
        """Return the cells as wide as the stride, in the middle of what each output reads.

        An operator that pads itself keeps its grid aligned with the input's.
        """
        start = (dilation * (kernel - 1) + 1 - stride) / 2 - padding
        return cls(0.0 if padding and abs(start) < stride else start, float(stride))


def resample(
    places: Tensor, size: tuple[int, int], table: BoxTable, cells: tuple[Cells, Cells] | None = None
) -> Tensor:
    """Return the places [H, W] of one grid on another of `size`.

    cells: where the new cells lie; None divides what the old grid covers into equal ones, as a
        resize does. Nowhere if rows and columns are not those of a grid, which a map in window
        order is not.
    """
    if tuple(places.shape) == size:
        return places
    boxes = table.of(places)
    rows = _edges(boxes[..., [0, 2]], dim=1)
    cols = _edges(boxes[..., [1, 3]], dim=0)
    if rows is None or cols is None:
        return torch.full(size, NOWHERE)
    if cells is None:
        cells = (Cells(0.0, len(rows) / size[0]), Cells(0.0, len(cols) / size[1]))
    return table.grid(_divide(rows, size[0], cells[0]), _divide(cols, size[1], cells[1]))


def _edges(boxes: Tensor, dim: int) -> Tensor | None:
    """Edges [n, 2] of the lines of a grid [H, W, 2], which must agree along `dim`; NaN: padding."""
    low = boxes.nan_to_num(torch.inf).amin(dim)
    high = boxes.nan_to_num(-torch.inf).amax(dim)
    empty = low.isinf()
    if bool(empty.all()) or bool(((high - low).abs() > _TOUCH)[~empty].any()):
        return None
    lines = low.masked_fill(empty, torch.nan)
    filled = lines[~empty[:, 0]]
    steps = filled[1:, 0] - filled[:-1, 1]
    return lines if bool((steps.abs() < _TOUCH).all()) else None


def _divide(lines: Tensor, count: int, cells: Cells) -> Tensor:
    """Edges [count, 2] of cells laid over lines [n, 2]; NaN where a cell holds only padding."""
    nodes = cells.start + torch.arange(count + 1, dtype=torch.float64) * cells.width
    filled = ~lines[:, 0].isnan()
    first = int(filled.nonzero()[0])
    edges = torch.cat([lines[filled][:, 0], lines[filled][-1:, 1]])  # contiguous lines
    at = (nodes - first).clamp(0, len(edges) - 1)  # padding takes up no image
    index = at.floor().long().clamp(max=len(edges) - 2)
    values = edges[index] + (at - index) * (edges[index + 1] - edges[index])
    parts = torch.stack([values[:-1], values[1:]], -1)
    parts[(parts[:, 1] - parts[:, 0]).abs() < _TOUCH] = torch.nan
    return parts
