"""From a model and a config to a plan: patterns, roles and policies are resolved here, once."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from codtdq.errors import ConfigError
from codtdq.numerics.spec import ActivationSpec, WeightSpec
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import KEPT_FLOAT, QuantPlan, Site
from codtdq.planning.roles import matrices, operators
from codtdq.planning.stored import buffer_bytes, other_bytes

# what the refusal of activation groups recommends
WITH_ACT_GROUPS = ("cod-tdq", "cod-tdq-plus", "nvfp4", "arcquant", "quartz")


def make_plan(model: nn.Module, config: QuantConfig) -> QuantPlan:
    """Resolve `config` for `model`. Nothing is changed."""
    found = operators(model)
    if not any(op.kind != "other" for op in found):
        raise ConfigError(
            f"{type(model).__name__} has no Linear, Conv1d or Conv2d: there is nothing to quantize"
        )
    _check_patterns(config, [op.name for op in found if op.kind != "other"])
    found = [dataclasses.replace(op, role=_role(op, config)) for op in found]
    _check_groups(config)
    _check_dcrp_roles(config, found)
    sites = tuple(_site(op, config) for op in found)
    weights = {id(p) for op in found for p in matrices(op.module)}
    other = sum(p.numel() for p in model.parameters() if id(p) not in weights)
    total = sum(p.numel() for p in model.parameters())  # a tied weight counts once
    return counted(QuantPlan(config, sites, other, total), model)


def counted(plan: QuantPlan, model: nn.Module) -> QuantPlan:
    """The plan with the bytes of what `model` stores beside the weights of its operators."""
    floats = other_bytes(model, plan.sites, plan.config.float_storage)
    return dataclasses.replace(plan, other_bytes=floats, buffer_bytes=buffer_bytes(model))


def _site(op: Site, config: QuantConfig) -> Site:
    plain = op.detached()
    if op.reason is not None:
        return plain
    reason = _wished_float(op, config)
    if reason is not None:
        if op.name in dict(config.layer_overrides):
            raise ConfigError(f"layer_overrides names {op.name}, but {reason}; remove one of them")
        return dataclasses.replace(plain, reason=reason, exact=True)
    weight, activation = _apply_overrides(op, config, *_specs(op, config))
    static = getattr(config, "static", False) and activation is not None
    if static and activation is not None and activation.mode == "per_token_group":
        raise ConfigError(f"{op.name}: per_token_group ranges cannot be static")
    if weight is None and activation is None:
        return dataclasses.replace(plain, reason=KEPT_FLOAT, exact=True)
    return dataclasses.replace(plain, weight=weight, activation=activation, static=static)


def _wished_float(op: Site, config: QuantConfig) -> str | None:
    pattern = _last_match(op.name, [(p, p) for p in config.skip_patterns])
    if pattern is not None:
        return f"skip_patterns has {pattern!r}"
    if op.role == "first" and config.first_layer == "float":
        return "first_layer is 'float'"
    return None


def _specs(op: Site, config: QuantConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the weight and activation records before per-layer overrides."""
    weight = config.weight_fields()
    for field, rules in (
        ("group_size", config.weight_group_rules),
        ("percentile", config.weight_percentile_rules),
    ):
        weight[field] = _last_match(op.name, rules, weight[field])
    eight = _matches(op.name, config.w8_patterns)
    eight |= op.role == "first" and config.first_layer == "w8a8"
    if weight["bits"] is not None and eight:
        weight["bits"] = 8
    activation = config.activation_fields(op.kind, op.role)
    group_size = _last_match(op.name, config.act_group_rules, activation["group_size"])
    activation["group_size"] = group_size
    if activation["bits"] is not None and _matches(op.name, config.keep_a8_patterns):
        activation["bits"] = 8
    return weight, activation


def _apply_overrides(
    op: Site, config: QuantConfig, weight: dict[str, Any], activation: dict[str, Any]
) -> tuple[WeightSpec | None, ActivationSpec | None]:
    for key, value in dict(config.layer_overrides).get(op.name, ()):
        if key.startswith("weight_"):
            weight[key.removeprefix("weight_")] = value
        else:
            activation[key.removeprefix("act_")] = value
    try:
        return (
            None if weight["bits"] is None else WeightSpec(**weight),
            None if activation["bits"] is None else ActivationSpec(**activation),
        )
    except ConfigError as error:
        raise ConfigError(f"{op.name}: {error}") from error


def _role(op: Site, config: QuantConfig) -> str:
    if op.kind == "other":
        return op.role
    role = _last_match(op.name, config.role_patterns, op.role)
    return str(role)


def _check_patterns(config: QuantConfig, names: list[str]) -> None:
    for field in (
        "skip_patterns",
        "w8_patterns",
        "keep_a8_patterns",
        "role_patterns",
        "weight_group_rules",
        "weight_percentile_rules",
        "act_group_rules",
    ):
        for entry in getattr(config, field):
            pattern = entry if isinstance(entry, str) else entry[0]
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"{field} has {pattern!r}, which matches no operator of this model; "
                    f"names look like {names[0]!r} or {names[-1]!r}"
                )
    for layer, _ in config.layer_overrides:
        if layer not in names:
            raise ConfigError(
                f"layer_overrides names {layer!r}, which is no operator of this model; "
                f"names look like {names[0]!r} or {names[-1]!r}"
            )


def _check_groups(config: QuantConfig) -> None:
    """Refuse a size of activation groups of a method that has none, rather than ignore it."""
    if config.has_act_groups:
        return
    overridden = {key for _, fields in config.layer_overrides for key, _ in fields}
    asked = {
        "act_group_size": config.act_group_size != type(config).act_group_size,
        "act_group_rules": bool(config.act_group_rules),
        "layer_overrides.act_group_size": "act_group_size" in overridden,
    }
    for field, found in asked.items():
        if found:
            raise ConfigError(
                f"{config.name} has one activation range per {config.range_per}: {field} does not "
                f"apply; methods with groups of channels: {', '.join(WITH_ACT_GROUPS)}"
            )


def _check_dcrp_roles(config: QuantConfig, found: list[Site]) -> None:
    roles = {op.role for op in found}
    for role in getattr(config, "dcrp_roles", None) or ():
        if role not in roles:
            raise ConfigError(
                f"dcrp_roles has {role!r}, but no operator of this model has that role "
                f"(found: {', '.join(sorted(roles))}); declare it with role_patterns"
            )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _last_match(name: str, rules: Any, default: Any = None) -> Any:
    for pattern, value in rules:
        if fnmatchcase(name, pattern):
            default = value
    return default
