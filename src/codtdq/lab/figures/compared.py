"""Which samples a figure sets side by side: FP32, a method that loses much, one that keeps it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError
from codtdq.lab.diagnosis.record import Diagnosis, LayerRecord, LayerSample, MethodRecord

NAIVE = "w4a4"


@dataclass(frozen=True)
class Compared:
    """One method's sample of a layer, with the records that go with it."""

    method: MethodRecord
    sample: LayerSample
    layer: LayerRecord | None

    @property
    def boundary(self) -> NDArray[np.bool_]:
        """Elements of boundary-heavy tokens."""
        return self.sample.boundary == 1

    @property
    def zeroed(self) -> NDArray[np.bool_]:
        """Elements that were evidence and became 0."""
        return (self.sample.x != 0) & (self.sample.x_hat == 0)

    def zeroed_share(self) -> float:
        """Return the share of the boundary's non-zero elements that became 0; NaN without any."""
        evidence = self.boundary & (self.sample.x != 0)
        return float(self.zeroed[evidence].mean()) if evidence.any() else float("nan")


def sampled_layers(diagnosis: Diagnosis) -> list[str]:
    """Return the layers of which two quantized methods or more keep a sample with boundary tokens.

    They come in the order of the samples, the highest-ranked first.
    """
    usable = [
        s
        for s in diagnosis.samples
        if s.method != "fp32" and (s.boundary == 1).any() and (s.x != 0).any()
    ]
    names = [s.layer for s in usable]
    return [name for name in dict.fromkeys(names) if names.count(name) >= 2]


def naive_and_better(diagnosis: Diagnosis, layer: str) -> tuple[Compared, Compared]:
    """Return the naive method (else the one with the lowest S) and the best other one."""
    found = [
        _compared(diagnosis, sample)
        for sample in diagnosis.samples
        if sample.layer == layer and sample.method != "fp32" and (sample.boundary == 1).any()
    ]
    if len(found) < 2:
        raise DataError(f"{layer}: samples of two methods are needed, {len(found)} found")
    ranked = sorted(found, key=lambda one: one.method.metrics.get("S", 0.0))
    naive = next((one for one in found if one.method.method == NAIVE), ranked[0])
    return naive, next(one for one in reversed(ranked) if one is not naive)


def _compared(diagnosis: Diagnosis, sample: LayerSample) -> Compared:
    method = diagnosis.method(sample.method)
    layer = next((record for record in method.layers if record.name == sample.layer), None)
    return Compared(method, sample, layer)
