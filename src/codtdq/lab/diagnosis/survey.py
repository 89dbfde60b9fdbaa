"""One model's pass over the images: hand each operator's input to its statistics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from codtdq.lab.diagnosis.archive import Archive
from codtdq.lab.diagnosis.boundary import BoundaryProtocol, box_means, label
from codtdq.lab.diagnosis.gallery import GallerySample, subsample
from codtdq.lab.diagnosis.groups import Observation, Observer
from codtdq.lab.diagnosis.listening import heard_operators, input_format
from codtdq.lab.diagnosis.record import LayerRecord, LayerSample
from codtdq.lab.diagnosis.statistics import LayerStatistics
from codtdq.lab.diagnosis.tokens import TokenMaps
from codtdq.numerics import ActivationResult


class Labels:
    """Labels of the tokens of one image, computed once per grid."""

    def __init__(
        self, band: NDArray[np.bool_], maps: TokenMaps, protocol: BoundaryProtocol
    ) -> None:
        self._maps, self._protocol = maps, protocol
        self._means = box_means(band, maps.edges(band.shape[0], band.shape[1]))
        self._labels = label(self._means, protocol)  # of every box
        self._known: dict[int, Tensor] = {}

    def of(self, name: str, call: int, tokens: int) -> Tensor | None:
        """Return the labels [N] of one call of an operator; None where the tokens have no place."""
        found = self._maps.get(name, call)
        if found is None or len(found.boxes) != tokens:
            return None
        key = id(found)  # operators on the same grid share a map
        if key not in self._known:
            if found.boxes.shape[1] == 1 and not found.gaps:  # the usual case
                self._known[key] = self._labels.index_select(0, found.boxes[:, 0])
            else:
                occupancy = found.occupancy(self._means, self._maps.areas)
                self._known[key] = label(occupancy, self._protocol)
        return self._known[key]


class Survey:
    """Statistics of every operator of one model under one method."""

    def __init__(
        self, model: nn.Module, method: str, maps: TokenMaps, archive: Archive | None = None
    ) -> None:
        self.method = method
        self.samples: list[LayerSample] = []  # of the first image
        self._maps, self._archive = maps, archive
        self._operators = heard_operators(model)
        self._formats = {name: input_format(model, name) for name in self._operators}
        observer = Observer()
        self._statistics = {name: LayerStatistics(observer) for name in self._operators}
        self._order: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._images = 0
        self._image = ""
        self._labels: Labels | None = None
        self._kept: GallerySample | None = None

    def start(self, image: str, labels: Labels | None, kept: GallerySample | None = None) -> None:
        """The next image is about to run."""
        self._image, self._labels, self._kept = image, labels, kept
        self._calls.clear()
        self._images += 1

    def hear(self, name: str, x: Tensor, x_hat: Tensor, result: ActivationResult | None) -> None:
        """Take in one input: tokens [N, C]."""
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        order = self._order.setdefault(name, len(self._order))
        labels = None if self._labels is None else self._labels.of(name, call, len(x))
        seen = Observation(x, x_hat, result, labels)
        self._statistics[name].add(seen)
        if self._kept is not None and call == 0 and x is not x_hat:
            self._kept.note(self.method, name, seen)
        if self._images == 1 and call == 0:
            self.samples.append(subsample(self.method, name, seen))
        if self._archive is not None:
            self._archive.write(self._image, order, name, call, seen)

    def records(self) -> list[LayerRecord]:
        """Return one record per operator that ran, in the order of the forward pass."""
        records = []
        for name, order in self._order.items():
            heard, (mode, bits, group) = self._operators[name], self._formats[name]
            found = self._maps.get(name, self._calls.get(name, 1) - 1)
            records.append(
                self._statistics[name].record(
                    name=name,
                    role=heard.role,
                    kind=heard.kind,
                    order=order,
                    channels=heard.channels,
                    grid=None if found is None else found.grid,
                    mode=mode,
                    bits=bits,
                    group=group,
                )
            )
        return records

    def state_bytes(self) -> int:
        """Return the bytes that the statistics hold, whatever the number of images."""
        return sum(statistics.state_bytes() for statistics in self._statistics.values())
