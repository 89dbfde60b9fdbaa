"""Which operators a model has, of which kind, in which role: found by type and declaration.

A role comes from the model (`roles` of a module's declaration: child name -> role, for the child
and everything inside it) or from the module's type. Names are never searched for
substrings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from codtdq.declarations import check_declaration
from codtdq.errors import ConfigError
from codtdq.planning.plan import Site

IMAGE_CHANNELS = 4  # a convolution with so few inputs reads an image
QUANTIZABLE: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d, nn.Conv1d)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm2d)


def operators(model: nn.Module) -> list[Site]:
    """All operators of a model in the order of registration; shared modules appear once.

    Each has its module, and the reason why it has to stay float, if it has to.

    Besides the quantizable types these are all leaf modules that own a weight matrix (transposed
    or deformable convolutions, embeddings, recurrent cells) and attention with a packed
    projection, so that a plan can say what stays float.
    """
    declared = dict(_declared_roles(model, "", None))
    has_first = "first" in declared.values()
    found: list[Site] = []
    for name, module in model.named_modules():
        if any(isinstance(p, UninitializedParameter) for p in module.parameters(recurse=False)):
            raise ConfigError(f"{name} is lazy and has no weights yet; run the model once first")
        if not _is_operator(module):
            continue
        kind = kind_of(module)
        role = declared.get(name) or kind
        if kind == "depthwise" and role in ("conv", "attention", "mlp"):
            role = "depthwise"  # what an operator mixes matters more than where it stands
        quantizable = kind != "other"
        if not has_first and kind == "conv" and module.in_channels <= IMAGE_CHANNELS:
            role, has_first = "first", True  # undeclared: the first convolution that fits an image
        obstacle = _obstacle(name, module, model) if quantizable else _no_operator(module)
        shape = _shape(module)
        found.append(
            Site(
                name=name,
                type=type(module).__name__,
                kind=kind,
                role=role if quantizable else "other",
                shape=shape,
                inputs=_inputs(module, shape),
                reason=obstacle,
                extra_parameters=_extra_parameters(module, shape),
                module=module,
            )
        )
    return found


def _extra_parameters(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Elements of further matrices of the same module (recurrent cells)."""
    return max(sum(p.numel() for p in matrices(module)) - math.prod(shape), 0)


def _inputs(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Channels of the input, which a grouped convolution's weight does not show."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.in_channels
    return shape[1]


def _shape(module: nn.Module) -> tuple[int, ...]:
    scheme = getattr(module, "weight_scheme", None)
    if scheme is not None:  # a quantized operator keeps its weight there
        return tuple(scheme.shape)
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim < 2:
        weight = matrices(module)[0]
    return tuple(weight.shape)


def kind_of(module: nn.Module) -> str:
    """Kind by type and shape: a convolution with one input channel per group is depthwise."""
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d | nn.Conv1d):
        single = module.in_channels == module.groups and module.groups > 1
        return "depthwise" if single else "conv"
    return "other"


def _declared_roles(
    module: nn.Module, prefix: str, inherited: str | None
) -> Iterator[tuple[str, str]]:
    if inherited is not None:
        yield prefix, inherited
    roles = check_declaration(module).roles
    for child_name, child in module.named_children():
        full = f"{prefix}.{child_name}" if prefix else child_name
        yield from _declared_roles(child, full, roles.get(child_name, inherited))


def _is_operator(module: nn.Module) -> bool:
    if isinstance(module, QUANTIZABLE):
        return True
    if isinstance(module, NORMS) or not matrices(module):
        return False
    is_leaf = next(module.children(), None) is None
    return is_leaf or isinstance(module, nn.MultiheadAttention)


def matrices(module: nn.Module) -> list[nn.Parameter]:
    """The weight matrices that a module owns itself."""
    return [p for p in module.parameters(recurse=False) if p.ndim >= 2]


def _no_operator(module: nn.Module) -> str:
    return f"{type(module).__name__} has no quantized operator"


def _obstacle(name: str, module: nn.Module, model: nn.Module) -> str | None:
    """Why a Linear or Conv cannot be replaced without changing what the model computes."""
    base = next(kind for kind in QUANTIZABLE if isinstance(module, kind))
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if not module.weight.numel():  # type: ignore[operator]
        return "its weight is empty"
    parent = model.get_submodule(name.rpartition(".")[0]) if name else None
    if isinstance(parent, nn.MultiheadAttention):
        return "nn.MultiheadAttention uses its weight directly"
    if parametrize.is_parametrized(module) or "weight" not in module._parameters:
        return "its weight is computed by a hook or parametrization"
    if type(module).forward is not base.forward:
        return f"{type(module).__name__} overrides forward"
    weight = module._parameters["weight"]
    if weight is not None and not weight.is_floating_point():
        return f"its weight is {weight.dtype}"
    return None
