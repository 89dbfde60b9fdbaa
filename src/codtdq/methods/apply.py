"""One call for every method: copy, quantize, record what was done."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codtdq.errors import ConfigError
from codtdq.methods.registry import MethodConfig, find_method
from codtdq.methods.workbench import Workbench, count_images
from codtdq.operators import convert, quant_operators
from codtdq.operators.conversion import RECORD, architecture_of
from codtdq.operators.simulated import sim_operators
from codtdq.planning import preset as preset_config
from codtdq.planning.roles import operators

METHOD_RECORD = "method_record"  # attribute of a model that a method made
BUDGETS = ("fast", "paper")


@dataclass
class MethodRecord:
    """What a quantized model knows of the method that made it."""

    name: str
    architecture: str
    config: dict[str, Any]
    info: dict[str, Any]
    seed: int
    budget: str
    steps: int
    calibration_images: int
    bits: dict[str, float]  # effective, metadata included: {"weight": ..., "activation": ...}
    notes: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return dataclasses.asdict(self)


def apply_method(
    model: nn.Module,
    method: str,
    calibration: Iterable[Any] | None = None,
    *,
    seed: int = 0,
    budget: str = "fast",
    changes: Mapping[str, Any] | None = None,
    state_dir: str | Path | None = None,
) -> nn.Module:
    """Quantize a model by a method's name; returns a new model in eval mode.

    calibration: batches of images, iterated several times; masks are never seen.
    budget: "fast" or "paper": optimisation steps of methods that reconstruct.
    changes: fields of the method's config to set, e.g. {"act_bits": 8}.
    state_dir: where a method that reconstructs keeps finished blocks, to go on after a stop.
    """
    if budget not in BUDGETS:
        raise ConfigError(f"budget is {budget!r}; accepted: {', '.join(BUDGETS)}")
    if getattr(model, METHOD_RECORD, None) is not None or hasattr(model, RECORD):
        raise ConfigError("the model is quantized already; quantize the float model instead")
    found = find_method(method)
    changes = dict(changes or {})
    if found.preset is not None:
        return _by_preset(model, method, calibration, seed, budget, changes)
    assert found.build is not None and isinstance(found.config, MethodConfig)
    bench = Workbench(
        copy.deepcopy(model).eval().requires_grad_(False),
        found.config.replace(**changes),
        calibration,
        seed=seed,
        budget=budget,
        state_dir=None if state_dir is None else Path(state_dir),
        original=model,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found.build(bench)
    done = bench.model.eval().requires_grad_(False)
    record = MethodRecord(
        method, architecture_of(model), bench.config.to_dict(), found.info.to_dict(), seed,
        budget, bench.steps, min(count_images(calibration), found.info.calibration_images),
        effective_bits(done), bench.notes,
    )  # fmt: skip
    setattr(done, METHOD_RECORD, record)
    return done


def _by_preset(
    model: nn.Module,
    method: str,
    calibration: Iterable[Any] | None,
    seed: int,
    budget: str,
    changes: dict[str, Any],
) -> nn.Module:
    found = find_method(method)
    assert found.preset is not None
    declared = getattr(getattr(model, "info", None), "act_modes", None)
    declared = declared if found.follows_model else None
    config = preset_config(found.preset, declared_modes=declared, **changes)
    used = calibration if config.needs_calibration else None
    done = convert(model, config, calibration=used)
    record = MethodRecord(
        method, architecture_of(model), config.to_dict(), found.info.to_dict(), seed, budget, 0,
        count_images(used), effective_bits(done), {},
    )  # fmt: skip
    setattr(done, METHOD_RECORD, record)
    return done


def effective_bits(model: nn.Module) -> dict[str, float]:
    """Mean bits per weight and per input channel of the quantized operators, metadata included.

    Weights are weighted by their number; activations by the multiply-accumulates per position that
    read them (the elements of the weight), which no input size changes.
    """
    weight_sum = act_sum = total = 0.0
    for operator in quant_operators(model).values():
        count = float(operator.site.parameters)
        weight_sum += count * (operator.site.weight_bits if operator.site.weight else 32.0)
        act_sum += count * operator.site.act_bits
        total += count
    for sim in sim_operators(model).values():
        count = float(sim.weight_store.shape.numel())
        weight_sum += count * sim.weight_store.bits()
        act_sum += count * sim.input_quantizer.bits(sim.channels)
        total += count
    if not total:
        return {"weight": 32.0, "activation": 32.0}
    return {"weight": round(weight_sum / total, 3), "activation": round(act_sum / total, 3)}


def describe(model: nn.Module) -> dict[str, Any]:
    """Name, settings and totals of a model that a method made, JSON-ready."""
    record: MethodRecord = getattr(model, METHOD_RECORD)
    sims = sim_operators(model)
    total = sum(op.weight_store.shape.numel() for op in sims.values())
    total += sum(parameter.numel() for parameter in model.parameters())  # biases, norms, tables
    return {
        "name": record.name, "config": record.config, "bits": record.bits,
        "operators": len([op for op in operators(model) if op.kind != "other"]),
        "quantized_operators": len(sims),
        "parameters": total,
        "fp32_bytes": 4 * total,
        "steps": record.steps, "notes": record.notes,
    }  # fmt: skip
