"""What a method would do to a model, before it has seen an image: formats and effective bits."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from codtdq.errors import ConfigError
from codtdq.methods.apply import effective_bits
from codtdq.methods.registry import MethodConfig, find_method
from codtdq.methods.workbench import Workbench
from codtdq.operators.simulated import sim_operators


@dataclass(frozen=True)
class OutlineRow:
    """One operator."""

    name: str
    type: str
    role: str
    shape: tuple[int, ...]
    weights: str  # kind of the store
    weight_bits: float  # effective, as activations'
    activations: str  # kind of the input quantizer
    act_bits: float


@dataclass(frozen=True)
class Outline:
    """The plan of a method, and a copy of the model in these formats, its weights blank."""

    method: str
    config: dict[str, Any]
    rows: list[OutlineRow]
    bits: dict[str, float]
    model: nn.Module

    @property
    def packed_bytes(self) -> float:
        """Of all quantized weights."""
        return sum(math.prod(row.shape) * row.weight_bits / 8 for row in self.rows)

    @property
    def fp32_bytes(self) -> int:
        """Of the same weights."""
        return sum(4 * math.prod(row.shape) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {
            "method": self.method, "config": self.config, "bits": self.bits,
            "packed_bytes": round(self.packed_bytes), "fp32_bytes": self.fp32_bytes,
            "sites": [dataclasses.asdict(row) for row in self.rows],
        }  # fmt: skip


def outline(
    model: nn.Module, method: str, image: torch.Tensor, changes: Mapping[str, Any] | None = None
) -> Outline:
    """The formats that a method gives a model; image: [1, 3, H, W], only its shape counts."""
    found = find_method(method)
    if found.preset is not None:
        raise ConfigError(f"{method} is a preset; use --preset {found.preset}")
    if found.sketch is None:
        raise ConfigError(
            f"the formats of {method} follow from its calibration; `codtdq quantize --method "
            f"{method}` prints its bits when it is done"
        )
    assert isinstance(found.config, MethodConfig)
    bench = Workbench(
        copy.deepcopy(model).eval().requires_grad_(False),
        found.config.replace(**dict(changes or {})),
        [image],
    )
    found.sketch(bench)
    rows = [
        OutlineRow(
            name, type(operator).__name__.removeprefix("Sim"), operator.role,
            tuple(operator.weight_store.shape), operator.weight_store.kind,
            operator.weight_store.bits(), operator.input_quantizer.kind,
            operator.input_quantizer.bits(operator.channels),
        )
        for name, operator in sim_operators(bench.model).items()
    ]  # fmt: skip
    return Outline(method, bench.config.to_dict(), rows, effective_bits(bench.model), bench.model)
