"""Apply a plan to a model: replace operators, round what stays float, keep every name."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError, CheckpointError, ConfigError
from codtdq.numerics.floats import BlockFloats, encode_floats
from codtdq.operators.calibration import CalibrationContext, run_calibration
from codtdq.operators.correction import correct_outputs
from codtdq.operators.norms import Fp32GroupNorm, Fp32LayerNorm
from codtdq.operators.quantized import QuantOperator, operator_for
from codtdq.planning import QuantConfig, QuantPlan, make_plan
from codtdq.planning.roles import QUANTIZABLE

RECORD = "quant_record"  # attribute of a quantized model


@dataclass
class QuantRecord:
    """What a quantized model knows about itself."""

    plan: QuantPlan
    architecture: str  # of the float model
    floats: dict[str, BlockFloats] = field(default_factory=dict)  # parameters in 8-bit blocks


def architecture_of(model: nn.Module) -> str:
    """The name under which a model can be built again: registered, or that of its class."""
    info = getattr(model, "info", None)
    name = getattr(info, "name", None)
    return str(name) if name else f"{type(model).__module__}.{type(model).__qualname__}"


def record_of(model: nn.Module) -> QuantRecord:
    """The record of a quantized model."""
    record = getattr(model, RECORD, None)
    if not isinstance(record, QuantRecord):
        raise ConfigError(
            f"{type(model).__name__} is not quantized; call codtdq.quantize(model, config) first"
        )
    return record


def convert(
    model: nn.Module, config: QuantConfig, *, calibration: Any = None, inplace: bool = False
) -> nn.Module:
    """Quantize a model. Returns a new one in eval mode; `inplace=True` saves the copy.

    calibration: batches for static radii or I/O correction; unused otherwise.
    """
    if isinstance(getattr(model, RECORD, None), QuantRecord):
        raise ConfigError("the model is quantized already; quantize the float model instead")
    plan = make_plan(model, config)
    architecture = architecture_of(model)
    _check_weights(model, plan)
    context = CalibrationContext(
        model, channels=False, pairs=config.io_correction != "none", plan=plan
    )
    if config.io_correction != "none" or any(site.static for site in plan):
        if calibration is None:
            raise CalibrationError(
                f"config {config.name!r} needs calibration data (act_range={config.act_range!r}, "
                f"io_correction={config.io_correction!r}); pass calibration=batches"
            )
        run_calibration(model, calibration, context)
        plan = _without_unreached(plan, context)
    radii = {
        name: radius.reduced(config.static_reduce, name)
        for name, radius in context.radii.items()
        if radius.batches
    }
    if not inplace:
        model = _copy(model, plan)
    apply_plan(model, plan, radii=radii)
    if config.io_correction != "none":
        correct_outputs(model, context.pairs, config.io_correction)
    setattr(model, RECORD, QuantRecord(plan, architecture, _round_floats(model, plan)))
    return model.eval()


def apply_plan(
    model: nn.Module,
    plan: QuantPlan,
    *,
    radii: dict[str, Tensor] | None = None,
    empty: bool = False,
) -> None:
    """Turn the operators of `model` into quantized ones as the plan says, in place.

    empty: make the structure only; a checkpoint fills it.
    """
    modules = dict(model.named_modules())
    for site in plan.quantized:
        module = modules.get(site.name)
        if module is None or _weight_shape(module) != site.shape:
            raise CheckpointError(
                f"{site.name} {site.shape} of the plan is not an operator of {type(model).__name__}"
            )
    for site in plan.quantized:
        module = modules[site.name]
        operator_for(module).adopt(
            module, site, compute_dtype=plan.config.compute_dtype,
            radius=(radii or {}).get(site.name), empty=empty,
        )  # fmt: skip
    for module in modules.values():
        if plan.config.fp32_ln and type(module) is nn.LayerNorm:
            Fp32LayerNorm.adopt(module)
        if plan.config.fp32_gn and type(module) is nn.GroupNorm:
            Fp32GroupNorm.adopt(module)
        _close_fast_path(module)


def _weight_shape(module: nn.Module) -> tuple[int, ...] | None:
    weight = module._parameters.get("weight")
    quantizable = isinstance(module, QUANTIZABLE)
    return tuple(weight.shape) if quantizable and weight is not None else None


def _close_fast_path(module: nn.Module) -> None:
    """Torch's fused encoder layer reads weights and never calls its Linear modules."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    if isinstance(module, nn.TransformerEncoder):
        module.enable_nested_tensor = module.use_nested_tensor = False


def quant_operators(model: nn.Module) -> dict[str, QuantOperator]:
    """The quantized operators of a model by name."""
    return {n: m for n, m in model.named_modules() if isinstance(m, QuantOperator)}


def _copy(model: nn.Module, plan: QuantPlan) -> nn.Module:
    """A deep copy that shares the weights which are about to be replaced.

    A weight that something else owns too (a tied embedding) is copied like all the rest.
    """
    replaced = {id(model.get_submodule(site.name)) for site in plan.quantized if site.weight}
    owners: dict[int, list[bool]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                tensors[id(parameter)] = parameter
                goes = id(module) in replaced and name == "weight"
                owners.setdefault(id(parameter), []).append(goes)
    memo: dict[int, Any] = {key: tensors[key] for key, going in owners.items() if all(going)}
    return copy.deepcopy(model, memo)


def _without_unreached(plan: QuantPlan, context: CalibrationContext) -> QuantPlan:
    """Static operators that no batch reached stay float, and the plan says so.

    Released networks carry layers that never run (classification heads, unused decoders).
    """
    unreached = {name for name, radius in context.radii.items() if not radius.batches}
    if unreached and len(unreached) == len(context.radii):
        raise CalibrationError("the calibration batches reached no operator of the model")
    sites = tuple(
        dataclasses.replace(
            site, weight=None, activation=None, static=False, exact=True,
            reason="no calibration batch reached it",
        ) if site.name in unreached else site
        for site in plan.sites
    )  # fmt: skip
    return dataclasses.replace(plan, sites=sites)


def _check_weights(model: nn.Module, plan: QuantPlan) -> None:
    for site in plan.quantized:
        weight = model.get_submodule(site.name)._parameters["weight"]
        if weight is not None and not bool(torch.isfinite(weight).all()):
            raise ConfigError(f"{site.name}.weight holds NaN or infinite values; fix it or skip it")


def _round_floats(model: nn.Module, plan: QuantPlan) -> dict[str, BlockFloats]:
    """Round the parameters that stay float to their stored form, so that a file is exact.

    Operators that the config keeps float on purpose are left as they are.
    """
    if plan.config.float_storage == "fp32":
        return {}
    exact = tuple(f"{site.name}." for site in plan if site.exact)
    stored: dict[str, BlockFloats] = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        if exact and name.startswith(exact):
            continue
        encoded = encode_floats(parameter)
        if encoded is not None:
            parameter.data.copy_(encoded.decode())
            stored[name] = encoded
    return stored
