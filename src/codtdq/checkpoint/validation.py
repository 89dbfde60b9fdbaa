"""Check a checkpoint completely before a model is built from it.

Everything that a file says is believed only after it was compared with something else: settings
with what their scheme accepts, buffers with the shape of the operator, shapes with the network,
counts with the bytes that are there. What passes cannot index outside of a buffer, ask for more
memory than the network has parameters, or put a NaN under a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from codtdq.checkpoint.tensors import StoredTensors
from codtdq.errors import CheckpointError, CodtdqError
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import QuantPlan, Site
from codtdq.planning.roles import QUANTIZABLE
from codtdq.schemes.base import InputScheme, WeightScheme, build_input_scheme, build_weight_scheme
from codtdq.schemes.filling import buffer_names, fill

ConfigReader = Callable[[Mapping[str, Any]], QuantConfig]  # of a header, whatever method it names
SPARE_BYTES = 64 << 20  # of a file of tensors beyond what its network can need
# what code of a method may raise when a file feeds it nonsense
NONSENSE = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class Shape(NamedTuple):
    """What a network says of one of its operators."""

    weight: tuple[int, ...]
    inputs: int


class StoredOperator(NamedTuple):
    """Both schemes of an operator, filled and checked, and whether it has a bias."""

    inputs: InputScheme
    weight: WeightScheme
    bias: bool


def operator_shapes(model: nn.Module) -> dict[str, Shape]:
    """The shapes of a float model's operators."""
    found: dict[str, Shape] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if isinstance(module, QUANTIZABLE) and weight is not None:
            inputs = getattr(module, "in_features", getattr(module, "in_channels", 0))
            found[name] = Shape(tuple(weight.shape), int(inputs))
    return found


def planned_shapes(plan: QuantPlan) -> dict[str, Shape]:
    """The shapes that a checkpoint itself claims, where there is no model to compare with."""
    return {site.name: Shape(site.shape, site.inputs) for site in plan}


def byte_limit(model: nn.Module) -> int:
    """Bytes that the tensors of a model may take in a file, generously."""
    tensors = (*model.parameters(), *model.buffers())
    return 8 * sum(tensor.numel() for tensor in tensors) + SPARE_BYTES


class Checked(NamedTuple):
    """A checkpoint that a model can be built from."""

    plan: QuantPlan
    tensors: StoredTensors
    operators: dict[str, StoredOperator]


def validate(
    meta: Mapping[str, Any],
    entries: Mapping[str, torch.Tensor],
    read_config: ConfigReader,
    model: nn.Module | None = None,
) -> Checked:
    """Check a header, whose own types are known to be sound, and its tensors.

    model: the network; without one, shapes are compared with what the plan claims.
    """
    try:
        plan = read_plan(meta, read_config)
        tensors = StoredTensors(entries, meta)
        shapes = planned_shapes(plan) if model is None else operator_shapes(model)
        owner = "the plan" if model is None else type(model).__name__
        return Checked(plan, tensors, check_operators(meta, plan, shapes, tensors, owner))
    except CodtdqError as error:
        raise CheckpointError(shortened(str(error))) from error


def read_plan(meta: Mapping[str, Any], read_config: ConfigReader) -> QuantPlan:
    """Config and plan of a header."""
    try:
        return QuantPlan.from_dict(meta["plan"], read_config(meta))
    except CodtdqError:
        raise
    except NONSENSE as error:
        raise CheckpointError(f"config or plan is damaged: {one_line(error)}") from error


def check_operators(
    meta: Mapping[str, Any],
    plan: QuantPlan,
    shapes: Mapping[str, Shape],
    tensors: StoredTensors,
    owner: str,
) -> dict[str, StoredOperator]:
    """The quantized operators of a checkpoint, their schemes filled.

    shapes: of the operators of the network (`owner`), or as the plan claims them.
    """
    sites = {site.name: site for site in plan}
    found: dict[str, StoredOperator] = {}
    for name, entry in meta["operators"].items():
        claimed = entry["weight"].get("shape")
        shape = shapes.get(name)
        if shape is None or list(shape.weight) != claimed:
            shown = tuple(claimed) if isinstance(claimed, list) and len(claimed) < 9 else "?"
            raise CheckpointError(f"{name} {shown} of the plan is not an operator of {owner}")
        _check_site(name, sites.get(name), shape)
        found[name] = _read_operator(name, entry, shape, tensors)
    return found


def _check_site(name: str, site: Site | None, shape: Shape) -> None:
    if site is None:
        raise CheckpointError(f"{name} is no operator of the plan")
    if (site.shape, site.inputs) != (shape.weight, shape.inputs):
        raise CheckpointError(
            f"the plan gives {name} the shape {list(site.shape)} and {site.inputs} inputs; "
            f"it has {list(shape.weight)} and {shape.inputs}"
        )


def _read_operator(
    name: str, entry: Mapping[str, Any], shape: Shape, tensors: StoredTensors
) -> StoredOperator:
    prefix = f"{name}." if name else ""  # a model may be a single operator
    side = f"{prefix}input_scheme"
    try:
        inputs = build_input_scheme(entry["input"])
        _fill(inputs, f"{side}.", shape, tensors)
        side = f"{prefix}weight_scheme"
        weight = build_weight_scheme(entry["weight"])
        if tuple(weight.shape) != shape.weight:  # a scheme of a foreign file may differ
            raise CheckpointError(f"has shape {list(weight.shape)}")
        _fill(weight, f"{side}.", shape, tensors)
        return StoredOperator(inputs, weight, entry["bias"])
    except CodtdqError as error:
        raise CheckpointError(f"{side}: {error}") from error
    except (*NONSENSE, RuntimeError) as error:
        raise CheckpointError(f"{side} is damaged: {one_line(error)}") from error


def _fill(
    scheme: InputScheme | WeightScheme, prefix: str, shape: Shape, tensors: StoredTensors
) -> None:
    kinds = {name: owner._buffers[leaf] for name, owner, leaf in buffer_names(scheme)}

    def find(name: str) -> torch.Tensor | None:
        blank = kinds[name]
        assert blank is not None
        return tensors.get(prefix + name, blank.dtype)

    fill(scheme, find, shape.inputs)


def check_names(needed: Mapping[str, torch.Tensor], stored: set[str]) -> None:
    """Raise unless a file holds all tensors of a model, and no others."""
    missing = sorted({name for name, tensor in needed.items() if tensor.numel()} - stored)
    extra = sorted(stored - set(needed))
    if missing or extra:
        raise CheckpointError(
            f"it does not fit the model: {len(missing)} keys missing "
            f"({', '.join(missing[:3]) or 'none'}), {len(extra)} unexpected "
            f"({', '.join(extra[:3]) or 'none'})"
        )


def check_tensor(name: str, value: torch.Tensor, target: torch.Tensor) -> None:
    """Raise unless a stored tensor can take the place of one of the model."""
    same_kind = (value.is_floating_point(), value.is_complex(), value.dtype is torch.bool) == (
        target.is_floating_point(),
        target.is_complex(),
        target.dtype is torch.bool,
    )
    if value.shape != target.shape or not same_kind:
        raise CheckpointError(
            f"{name} has shape {tuple(value.shape)} and dtype {value.dtype}, "
            f"the model expects {tuple(target.shape)} and {target.dtype}"
        )
    if value.is_floating_point() and bool(torch.isnan(value).any()):
        raise CheckpointError(f"{name} holds NaN")


def one_line(error: BaseException) -> str:
    """Kind and message of an error."""
    return shortened(f"{type(error).__name__}: {error}", 200)


def shortened(text: str, longest: int = 400) -> str:
    """A message in one line, cut where a file has put a document into it."""
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}..."
