"""Fold per-channel scales and shifts into norms, or keep them at the operator.

Every reader of a tensor sees x' = (x - shift) / scale; weights and biases undo it, so the float
function stays the same. Where a norm is the only source of the tensor and nothing but operators
reads it, the norm produces x' itself (`fold_into_norm`, free at run time). Anywhere else the
operator computes x' before it quantizes (`rescale_at_operator`).

Fold before weights are quantized: the weights that end up on a grid are the rescaled ones.
"""

from __future__ import annotations

from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.methods.workbench import Workbench
from codtdq.operators.quantized import QuantOperator
from codtdq.operators.rescale import (
    obstacle_to_rescaling,
    rescale_inputs,
    rescale_norm,
    takes_shift,
)
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import Rescaled


def foldable(bench: Workbench, norm: str, *, with_shift: bool = False) -> bool:
    """Whether a norm can take over a scale (and a shift) without changing the model's function."""
    return fold_obstacle(bench, norm, with_shift=with_shift) is None


def fold_obstacle(bench: Workbench, norm: str, *, with_shift: bool = False) -> str | None:
    """Why `foldable` says no."""
    use = bench.graph.norms.get(norm)
    if use is None:
        return "it is no norm of the model"
    return obstacle_to_rescaling(bench.model, use, with_shift=with_shift)


def fold_into_norm(bench: Workbench, norm: str, scale: Tensor, shift: Tensor | None = None) -> bool:
    """Let a norm give (x - shift) / scale, scale and shift [C], and compensate all its readers.

    False, and nothing is changed, if that is not possible exactly.
    """
    if not foldable(bench, norm, with_shift=shift is not None):
        return False
    rescale_norm(bench.model, bench.graph.norms[norm], scale, shift)
    return True


def can_rescale_at_operator(site: Site, *, with_shift: bool = False) -> bool:
    """Whether an operator can rescale its own input: not by a shift if it pads with zeros."""
    return not with_shift or takes_shift(site.module)


def rescale_at_operator(
    bench: Workbench, site: Site, inner: InputScheme, scale: Tensor, shift: Tensor | None = None
) -> QuantOperator:
    """Quantize (x - shift) / scale by `inner`; the operator's weight and bias undo the rescaling.

    Exact for every source, padded or not. The weight must still be float; quantize it afterwards.
    """
    if not can_rescale_at_operator(site, with_shift=shift is not None):
        raise ConfigError(f"{site.name} pads its input with zeros; give it a scale without a shift")
    rescale_inputs(site.module, scale, shift)
    return bench.install(site, inputs=Rescaled(inner, scale=scale, shift=shift))


def norm_groups(bench: Workbench) -> dict[str, list[Site]]:
    """The sites that read each exclusive norm, in running order: they share one rescaling."""
    sites = {site.name: site for site in bench.sites}
    return {
        name: [sites[consumer] for consumer in use.consumers if consumer in sites]
        for name, use in bench.graph.norms.items()
        if use.exclusive and any(consumer in sites for consumer in use.consumers)
    }
