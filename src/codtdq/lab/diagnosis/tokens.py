"""The image-to-token map of every operator, found by one traced forward pass (S4.4).

P(t), the support of token t, is the cell of the token's grid: convolutions and resizes divide the
image into equal cells, Linear layers and norms keep them, window partition, shifts and padding
move them, patch merging unites four. Padding tokens have no support; operators that read pooled
vectors have no map at all.

A module whose forward the trace cannot follow, but whose output [B, O, H, W] lies on the grid of
its first input [B, C, H, W], declares `token_grid="input"`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.declarations import declaration_of
from codtdq.lab.diagnosis.boundary import pixel_edges
from codtdq.lab.diagnosis.places import PlaceTracer
from codtdq.lab.diagnosis.supports import NOWHERE
from codtdq.operators.tokens import input_tokens
from codtdq.planning.roles import operators


@dataclass(frozen=True)
class TokenMap:
    """Supports of the tokens of one call.

    boxes: int64 [N, M], numbers of boxes whose union is the support; -1 fills short rows, and a
        row of -1 alone is a token without a place (padding).
    grid: distinct rows and columns of supports.
    """

    boxes: Tensor
    grid: tuple[int, int]

    @cached_property
    def gaps(self) -> bool:
        """Whether some tokens have no place."""
        return bool((self.boxes[:, 0] < 0).any())

    def key(self) -> tuple[object, ...]:
        """Equal for equal maps."""
        return (tuple(self.boxes.shape), self.boxes.numpy().tobytes())

    def occupancy(self, means: Tensor, areas: Tensor) -> Tensor:
        """pi(t) (Eq. supp_boundary_occupancy): float64 [N], NaN for a token without a place.

        means, areas: of every box of the table, [boxes].
        """
        here = self.boxes >= 0
        index = self.boxes.clamp(min=0)
        weight = torch.where(here, areas[index], 0.0)
        return (means[index] * weight).sum(1) / weight.sum(1)

    def paint(self, values: Tensor, table: Tensor, size: tuple[int, int]) -> Tensor:
        """Values [N] on the pixels of their tokens: float32 [H, W]; 0 where no token is."""
        canvas = torch.zeros(size)
        scale = torch.tensor([size[0], size[1], size[0], size[1]], dtype=torch.float64)
        for boxes, value in zip(self.boxes.tolist(), values.tolist()):
            for number in boxes:
                if number >= 0:
                    edges = (table[number] * scale).round().long().tolist()
                    canvas[edges[0] : edges[2], edges[1] : edges[3]] = value
        return canvas


@dataclass(frozen=True)
class TokenMaps:
    """The maps of a model for one input size.

    maps: by operator, one entry per call; None where the tokens have no place in the image.
    table: boxes (top, left, bottom, right) as shares of height and width, float64 [boxes, 4].
    """

    maps: dict[str, list[TokenMap | None]]
    table: Tensor
    _edges: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def get(self, name: str, call: int) -> TokenMap | None:
        """Return the map of one call of an operator; None if there is none."""
        calls = self.maps.get(name, [])
        return calls[call] if call < len(calls) else None

    def edges(self, height: int, width: int) -> Tensor:
        """The boxes in pixels of an image; data sets have few sizes, so the last one is kept."""
        if self._edges.get("size") != (height, width):
            self._edges["size"] = (height, width)
            self._edges["edges"] = pixel_edges(self.table, height, width)
        found: Tensor = self._edges["edges"]
        return found

    @cached_property
    def areas(self) -> Tensor:
        """Area of each box, as a share of the image: [boxes]."""
        top, left, bottom, right = self.table.unbind(-1)
        return (bottom - top) * (right - left)

    @property
    def unmapped(self) -> list[str]:
        """Operators none of whose calls has a map."""
        return [name for name, calls in self.maps.items() if not any(calls)]


def token_maps(model: nn.Module, image: Tensor) -> TokenMaps:
    """Trace a float model once on an image [1, C, H, W]."""
    tracer = PlaceTracer()
    maps: dict[str, list[TokenMap | None]] = {}
    handles = []
    for operator in operators(model):
        if operator.kind == "other":
            continue
        hook = _reader(tracer, maps.setdefault(operator.name, []))
        handles.append(operator.module.register_forward_pre_hook(hook, with_kwargs=True))
    for module in model.modules():
        if declaration_of(module).token_grid == "input":
            handles.append(module.register_forward_hook(_keeper(tracer)))
    training = model.training
    try:
        model.eval()
        tracer.start(image)
        with torch.no_grad(), tracer:
            model(image)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    same: dict[tuple[object, ...], TokenMap] = {}
    for calls in maps.values():
        calls[:] = [found and same.setdefault(found.key(), found) for found in calls]
    return TokenMaps(maps, tracer.table.tensor())


def _reader(tracer: PlaceTracer, found: list[TokenMap | None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs["input"]
        with torch._C.DisableTorchFunction():
            places = tracer.get(x)
            found.append(None if places is None else _token_map(module, places, tracer))

    return hook


def _keeper(tracer: PlaceTracer) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            tracer.keep_grid(args[0], output)

    return hook


def _token_map(module: nn.Module, places: Tensor, tracer: PlaceTracer) -> TokenMap | None:
    """Distinct places of each token; None for a single token or tokens without places."""
    tokens = input_tokens(module, places).flatten(0, 1)  # [N, C]
    if len(tokens) == 1 or bool((tokens == NOWHERE).all()):
        return None
    high = tokens.amax(1)
    low = tokens.masked_fill(tokens == NOWHERE, torch.inf).amin(1)
    if bool(((low == high) | (high == NOWHERE)).all()):
        boxes = high[:, None].long()
    else:
        ordered = torch.unique(tokens, dim=1).sort(dim=1, descending=True).values
        repeated = torch.zeros_like(ordered, dtype=torch.bool)
        repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        ordered = ordered.masked_fill(repeated, NOWHERE).sort(dim=1, descending=True).values
        boxes = ordered[:, (ordered >= 0).any(0)].long()
    corners = tracer.table.tensor()[boxes[:, 0][boxes[:, 0] >= 0]]
    grid = (len(corners[:, 0].unique()), len(corners[:, 1].unique()))
    return TokenMap(boxes, grid)
