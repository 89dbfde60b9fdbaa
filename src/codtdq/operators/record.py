"""What a quantized model knows about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from codtdq.errors import ConfigError
from codtdq.numerics.floats import BlockFloats
from codtdq.operators.quantized import quant_operators
from codtdq.planning.plan import QuantPlan

RECORD = "quant_record"  # attribute of a quantized model


@dataclass
class QuantRecord:
    """How a model was made: its plan (with the config), and the run that followed it."""

    plan: QuantPlan
    architecture: str  # of the float model
    info: dict[str, Any] = field(default_factory=dict)  # what the method declares about itself
    seed: int = 0
    budget: str = "fast"
    steps: int = 0  # of optimisation
    calibration_images: int = 0
    bits: dict[str, float] = field(default_factory=dict)  # effective, metadata included
    notes: dict[str, Any] = field(default_factory=dict)  # facts that the method found, JSON-ready
    # parameters in 8-bit blocks
    floats: dict[str, BlockFloats] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """Of the method or preset."""
        return self.plan.config.name

    @property
    def config(self) -> dict[str, Any]:
        """The method's settings, JSON-ready."""
        return self.plan.config.to_dict()

    def run(self) -> dict[str, Any]:
        """The facts of the run, JSON-ready: what a checkpoint keeps beside config and plan."""
        return {
            "info": self.info,
            "seed": self.seed,
            "budget": self.budget,
            "steps": self.steps,
            "calibration_images": self.calibration_images,
            "bits": self.bits,
            "notes": self.notes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Name, settings and run, JSON-ready."""
        return {
            "name": self.name,
            "architecture": self.architecture,
            "config": self.config,
            **self.run(),
        }


def architecture_of(model: nn.Module) -> str:
    """The name under which a model can be built again: registered, or that of its class."""
    info = getattr(model, "info", None)
    name = getattr(info, "name", None)
    return str(name) if name else f"{type(model).__module__}.{type(model).__qualname__}"


def is_quantized(model: nn.Module) -> bool:
    """Whether a model carries a record."""
    return isinstance(getattr(model, RECORD, None), QuantRecord)


def record_of(model: nn.Module) -> QuantRecord:
    """The record of a quantized model."""
    record = getattr(model, RECORD, None)
    if not isinstance(record, QuantRecord):
        raise ConfigError(
            f"{type(model).__name__} is not quantized; call codtdq.quantize(model, config) first"
        )
    return record


def effective_bits(model: nn.Module) -> dict[str, float]:
    """Mean bits per weight and per input channel of the quantized operators, metadata included.

    Weights are weighted by their number; activations by the multiply-accumulates per position that
    read them (the elements of the weight), which no input size changes.
    """
    weight_sum = act_sum = total = 0.0
    for operator in quant_operators(model).values():
        count = float(operator.weight_scheme.shape.numel())
        weight_sum += count * operator.weight_scheme.bits()
        act_sum += count * operator.input_scheme.bits(operator.inputs)
        total += count
    if not total:
        return {"weight": 32.0, "activation": 32.0}
    return {"weight": round(weight_sum / total, 3), "activation": round(act_sum / total, 3)}


def describe(model: nn.Module) -> dict[str, Any]:
    """Name, settings and totals of a quantized model, JSON-ready."""
    record = record_of(model)
    return {
        "name": record.name,
        "config": record.config,
        **record.plan.totals(),
        "bits": record.bits,
        "steps": record.steps,
        "notes": record.notes,
    }
