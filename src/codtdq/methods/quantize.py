"""One verb for every method: plan, copy, build, finish, record what was done."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.budgets import BUDGETS
from codtdq.errors import CalibrationError, ConfigError
from codtdq.methods.registry import Method, config_for, method_of
from codtdq.methods.workbench import Workbench, count_images
from codtdq.operators.batch_norms import fold_batch_norms
from codtdq.operators.conversion import (
    check_weights,
    clip_weights,
    finish,
    round_floats,
    working_copy,
)
from codtdq.operators.foreign import with_linears
from codtdq.operators.quantized import quant_operators
from codtdq.operators.record import (
    RECORD,
    QuantRecord,
    architecture_of,
    effective_bits,
    is_quantized,
)
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import QuantPlan, Site
from codtdq.planning.planner import make_plan


def quantize_model(
    model: nn.Module,
    config: QuantConfig,
    calibration: Iterable[Any] | None = None,
    *,
    seed: int = 0,
    budget: str = "fast",
    state_dir: str | Path | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Quantize a model as its config says; returns a new model in eval mode, simulated.

    calibration: batches of images, iterated several times; masks are never seen.
    budget: "fast", "tenth" or "paper": optimisation steps of methods that reconstruct. "least"
        takes one step per block: times and sizes of the result are right, its values are not.
    state_dir: where a method keeps finished parts, to go on after a stop.
    inplace: change `model` itself, which saves a copy; for methods that fold, an error.
    """
    if budget not in (*BUDGETS, "least"):
        raise ConfigError(f"budget is {budget!r}; accepted: {', '.join(BUDGETS)}")
    if is_quantized(model):
        raise ConfigError("the model is quantized already; quantize the float model instead")
    method = method_of(config)
    used = _calibration(method, config, calibration)
    if inplace and not method.keeps_weights:
        raise ConfigError(f"{config.name} changes weights on the way; inplace=True is not possible")
    if config.fold_norms and method.keeps_weights:
        raise ConfigError(f"{config.name} keeps float weights as they are; set fold_norms=False")
    architecture = architecture_of(model)
    model = with_linears(model, inplace=inplace)
    plan = make_plan(model, config)
    check_weights(model, plan)
    work = model if inplace else _copy(model, plan, method)
    bench = Workbench(
        work,
        config,
        used,
        plan=plan,
        seed=seed,
        budget=budget,
        state_dir=None if state_dir is None else Path(state_dir),
        original=model,
    )
    if config.fold_norms:
        bench.notes["folded_batch_norms"] = len(fold_batch_norms(work, bench.graph, bench.sites))
    if not method.keeps_weights:
        clip_weights(work, plan)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        method.build(bench)
    done = bench.model.eval()
    for operator in quant_operators(done).values():
        operator.requires_grad_(False)
    finish(done, config)
    plan = settled_plan(bench)
    record = QuantRecord(
        plan,
        architecture,
        info=method.info.to_dict(),
        seed=seed,
        budget=budget,
        steps=bench.steps,
        calibration_images=min(count_images(used), method.info.calibration_images),
        bits=effective_bits(done),
        notes=bench.notes,
        floats=round_floats(done, plan),
    )
    setattr(done, RECORD, record)
    return done


def outline(
    model: nn.Module, config: QuantConfig, image: Tensor | None = None
) -> tuple[QuantPlan, nn.Module | None]:
    """The plan of a config, and a copy of the model in its formats, its weights blank.

    image: [1, 3, H, W], only its shape counts. Without one, and for methods whose formats follow
    from their calibration, the plan tells widths only and there is no copy.
    """
    method = method_of(config)
    model = with_linears(model)
    plan = make_plan(model, config)
    if method.sketch is None or image is None:
        return plan, None
    # nothing is changed: parameters are shared
    work = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
    bench = Workbench(work, config, [image], plan=plan)
    method.sketch(bench)
    return settled_plan(bench), bench.model


def settled_plan(bench: Workbench) -> QuantPlan:
    """The plan as it was carried out: formats and their bits; unreached operators stay float."""
    assert bench.plan is not None
    operators = quant_operators(bench.model)
    sites = tuple(_settled(site, operators.get(site.name)) for site in bench.plan.sites)
    for site in sites:
        if site.name in operators:
            operators[site.name].site = site
    return dataclasses.replace(bench.plan, sites=sites)


def _settled(site: Site, operator: Any) -> Site:
    if not site.quantized:
        return site
    if operator is None:
        return dataclasses.replace(
            site,
            weight=None,
            activation=None,
            static=False,
            exact=True,
            reason="no calibration batch reached it",
        )
    inputs, weight = operator.input_scheme, operator.weight_scheme
    own: dict[str, Any] = {
        "act_format": None if inputs.kind in _PLANNED else inputs.label(),
        "weight_format": None if weight.kind in _PLANNED else weight.label(),
        "act_cost": None if inputs.kind in _PLANNED else inputs.bits(operator.inputs),
        "weight_cost": None if weight.kind in _PLANNED else weight.bits(),
    }
    return dataclasses.replace(site, **own)


_PLANNED = ("projected-range", "symmetric", "float")  # what a plan's own records describe


def _copy(model: nn.Module, plan: QuantPlan, method: Method) -> nn.Module:
    """A copy to work on: with weights of its own where the method changes them on the way."""
    if method.keeps_weights:
        return working_copy(model, plan)
    return copy.deepcopy(model).eval().requires_grad_(False)


def _calibration(
    method: Method, config: QuantConfig, calibration: Iterable[Any] | None
) -> Iterable[Any] | None:
    needed = config.needs_calibration
    if not needed and method.keeps_weights:
        return None
    if needed and calibration is None:
        raise CalibrationError(
            f"{config.name} needs calibration images; pass calibration=batches, or take a setting "
            "that needs none, e.g. 'cod-tdq' or 'cod-tdq-guarded'"
        )
    if isinstance(calibration, Tensor) or not isinstance(calibration, Iterable):
        raise CalibrationError(
            f"calibration is a {type(calibration).__name__}; pass a list or other iterable of "
            "batches"
        )
    return calibration


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
    """Quantize by a method's name; an alias of `codtdq.quantize` for one release, simulated."""
    config = config_for(method, model, **dict(changes or {}))
    return quantize_model(model, config, calibration, seed=seed, budget=budget, state_dir=state_dir)
