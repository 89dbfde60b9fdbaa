"""What has a unit of its own in front of an operator, where scales are integer.

A unit leaves the sum of a product: tokens may have their own only where a sum has one of them,
channels only where it has one of those.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from codtdq.numerics.spec import ActivationSpec
from codtdq.planning.roles import kind_of
from codtdq.schemes.projected import ProjectedRange


def unit_of(module: nn.Module, ranges: str) -> str:
    """What may have a unit: "token", "image" or "channel"; ranges: as `CarrySpec` calls them."""
    if isinstance(module, nn.Linear):
        return "token"
    if kind_of(module) == "depthwise":
        return "channel" if ranges in ("pixel", "channel") else "image"
    if ranges == "pixel":
        return "image"
    return "token" if _reads_one_token(module) else "image"


def projected_input(
    module: nn.Module, spec: ActivationSpec, radius: Tensor | None = None
) -> ProjectedRange:
    """The scheme of a specification in front of an operator."""
    ranges = {"per_tensor": "tensor", "per_channel": "channel"}.get(spec.mode, "group")
    return ProjectedRange.of(spec, radius, unit=unit_of(module, ranges))


def _reads_one_token(module: Any) -> bool:
    padding = module.padding
    none = isinstance(padding, str) or not any(padding)  # "same" pads a 1x1 kernel by nothing
    return none and all(side == 1 for side in module.kernel_size)
