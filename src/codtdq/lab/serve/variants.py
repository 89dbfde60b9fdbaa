"""The networks that the page compares: one float model, and what quantization makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from codtdq.api import config, load, quantize
from codtdq.errors import CodtdqError, ConfigError
from codtdq.evaluation.predict import predict_batch
from codtdq.evaluation.provenance import execution_of
from codtdq.models.weights import shipped_weights
from codtdq.operators.record import is_quantized, record_of
from codtdq.resolve import open_model, quantize_for

FLOAT, NAIVE, PAPER, PLUS = "fp32", "w4a4", "cod-tdq", "cod-tdq-plus"
TITLES = {FLOAT: "FP32", NAIVE: "W4A4 naive", PAPER: "W4A4 COD-TDQ", PLUS: "W4A4 COD-TDQ plus"}
CALIBRATION_IMAGES = 32  # synthetic ones, where the package holds no quantized model

PREPARATION = "codtdq-prepare"  # the thread that builds the networks
BLANK = np.zeros((32, 32, 3), np.uint8)


class Unready(Exception):
    """A network is still being prepared."""


@dataclass(frozen=True)
class Variant:
    """One network: how it goes by, its size as a file and how it runs; or why there is none."""

    method: str
    title: str
    model: nn.Module | None = None
    bytes: int = 0
    execution: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: what a page or a program may know."""
        state = "ready" if self.model is not None else "failed" if self.reason else "preparing"
        found: dict[str, Any] = {"method": self.method, "title": self.title, "state": state}
        if self.model is not None:
            found |= {"mib": round(self.bytes / 2**20, 2), "execution": self.execution}
        return found | ({"reason": self.reason} if self.reason else {})


class Variants:
    """The networks by method; `prepare` builds them, and each can be used once it is ready."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._known = {method: Variant(method, title) for method, title in TITLES.items()}
        self._lock = threading.Lock()

    def all(self) -> list[Variant]:
        """In the order of the page."""
        with self._lock:
            return list(self._known.values())

    def get(self, method: str) -> Variant:
        """A network that is ready; `ConfigError` for another name, `Unready` before its time."""
        found = self._known.get(method)
        if found is None:
            raise ConfigError(f"method is {method!r}; accepted: {', '.join(TITLES)}")
        if found.reason:
            raise ConfigError(f"{method} could not be prepared: {found.reason}")
        if found.model is None:
            raise Unready
        return found

    def prepare(self) -> None:
        """Build all four; what fails says so on the page, and the others go on."""
        builders: dict[str, Callable[[], nn.Module]] = {
            FLOAT: lambda: open_model(self.name),
            NAIVE: lambda: quantize(self._float(), NAIVE),
            PAPER: lambda: quantize(self._float(), PAPER),
            PLUS: self._plus,
        }
        for method, build in builders.items():
            self._set(_built(method, build))

    def _set(self, variant: Variant) -> None:
        with self._lock:
            self._known[variant.method] = variant

    def _float(self) -> nn.Module:
        model = self.get(FLOAT).model
        assert model is not None
        return model

    def _plus(self) -> nn.Module:
        """The quantized model of the package, or one that is calibrated now."""
        packed = packed_model(self.name)
        if packed is not None:
            return load(packed)
        model = self._float()
        settings = config(PLUS, model=model)
        return quantize_for(model, settings, count=CALIBRATION_IMAGES, backend="auto")


def packed_model(name: str) -> str | None:
    """The directory of the package that holds a model at four bits, if there is one."""
    directory = shipped_weights(f"{name}-w4a4")
    return str(directory) if directory.is_dir() else None


def _built(method: str, build: Callable[[], nn.Module]) -> Variant:
    try:
        model = build().eval()
        predict_batch(model, [BLANK])  # captures and packing belong to no visitor
    except CodtdqError as error:
        return Variant(method, TITLES[method], reason=" ".join(str(error).split()))
    except Unready:
        return Variant(method, TITLES[method], reason="the float network could not be opened")
    return Variant(method, TITLES[method], model, _bytes(model), execution_of(model))


def _bytes(model: nn.Module) -> int:
    """Of the weights as a file: four a parameter, or what the plan of a packed model counts."""
    if is_quantized(model):
        return int(record_of(model).plan.totals()["packed_bytes"])
    return 4 * sum(parameter.numel() for parameter in model.parameters())
