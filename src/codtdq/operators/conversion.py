"""Steps that every conversion shares: copy, replace, finish, keep every name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from codtdq.errors import ConfigError
from codtdq.numerics.floats import BlockFloats, encode_floats
from codtdq.numerics.weight import clip_weight
from codtdq.operators.norms import Fp32GroupNorm, Fp32LayerNorm
from codtdq.operators.quantized import QuantOperator, operator_for
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import QuantPlan, Site, goes_in_blocks
from codtdq.schemes.base import InputScheme, WeightScheme


def install(
    model: nn.Module,
    site: Site,
    config: QuantConfig,
    *,
    inputs: InputScheme | None = None,
    weight: WeightScheme | None = None,
    blank: bool = False,
) -> QuantOperator:
    """Plug schemes into an operator, or exchange those of one that is installed already.

    None leaves a side as it is (float at first). blank: weights have no values yet.
    """
    module = model.get_submodule(site.name)
    if isinstance(module, QuantOperator):
        module.exchange(inputs=inputs, weight=weight)
        return module
    return operator_for(module).adopt(
        module,
        site.detached(),
        inputs=inputs,
        weight=weight,
        compute_dtype=config.compute_dtype,
        empty=blank,
    )


def finish(model: nn.Module, config: QuantConfig) -> None:
    """What surrounds the operators: norms in float32, no path that goes around them."""
    for module in model.modules():
        if config.fp32_ln and type(module) is nn.LayerNorm:
            Fp32LayerNorm.adopt(module)
        if config.fp32_gn and type(module) is nn.GroupNorm:
            Fp32GroupNorm.adopt(module)
        _close_fast_path(module)


def _close_fast_path(module: nn.Module) -> None:
    """Torch's fused encoder layer reads weights and never calls its Linear modules."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    if isinstance(module, nn.TransformerEncoder):
        module.enable_nested_tensor = module.use_nested_tensor = False


def working_copy(model: nn.Module, plan: QuantPlan) -> nn.Module:
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


def check_weights(model: nn.Module, plan: QuantPlan) -> None:
    """Refuse weights that no grid can hold."""
    for site in plan.quantized:
        weight = model.get_submodule(site.name)._parameters["weight"]
        if weight is not None and not bool(torch.isfinite(weight).all()):
            raise ConfigError(f"{site.name}.weight holds NaN or infinite values; fix it or skip it")


def clip_weights(model: nn.Module, plan: QuantPlan) -> None:
    """Clip float weights where the plan asks for it, before a method looks at them, in place."""
    for site in plan.quantized:
        if site.weight is not None and site.weight.percentile is not None:
            weight = model.get_submodule(site.name)._parameters["weight"]
            assert weight is not None
            weight.data = clip_weight(weight.data, site.weight.percentile)


def round_floats(model: nn.Module, plan: QuantPlan) -> dict[str, BlockFloats]:
    """Round the parameters that stay float to their stored form, so that a file is exact.

    Operators that the config keeps float on purpose are left as they are, and vectors too if only
    tables go into blocks: an error of a norm or a bias is the same for every token.
    """
    storage = plan.config.float_storage
    if storage == "fp32":
        return {}
    exact = tuple(f"{site.name}." for site in plan if site.exact)
    stored: dict[str, BlockFloats] = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        if exact and name.startswith(exact):
            continue
        if not goes_in_blocks(parameter.shape, storage):
            continue
        encoded = encode_floats(parameter)
        if encoded is not None:
            with torch.no_grad():  # not through .data: a cache of the old values would stay
                parameter.copy_(encoded.decode())
            stored[name] = encoded
    return stored


def restore_structure(
    model: nn.Module, plan: QuantPlan, schemes: Mapping[str, tuple[InputScheme, WeightScheme, bool]]
) -> None:
    """Give a float model the operators of a checkpoint, in place.

    schemes: operator -> its two schemes, which fit it, and whether it has a bias.
    """
    sites = {site.name: site for site in plan}
    for name, (inputs, weight, has_bias) in schemes.items():
        module = model.get_submodule(name)
        if has_bias and module._parameters.get("bias") is None:
            like = module._parameters["weight"]
            assert like is not None
            blank = torch.zeros(like.shape[0], dtype=like.dtype, device=like.device)
            module.bias = nn.Parameter(blank)
        operator_for(module).adopt(
            module,
            sites[name],
            inputs=inputs,
            weight=weight,
            compute_dtype=plan.config.compute_dtype,
            empty=True,
        )
    finish(model, plan.config)
