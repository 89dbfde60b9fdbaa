"""Equal channels behind norms: magnitude moves from the norm into the weights that read it.

s_j = x_j^a / w_j^(1 - a) with x_j the spread of channel j and w_j the size of the weights behind it
(SmoothQuant: Xiao et al., ICML 2023, with maxima instead). Whatever factors a network's training,
or anybody else, has hidden between a norm and its readers cancel in x_j / s_j for every a. The
exponent, and whether the channel means go into the biases as well, is chosen per norm by the output
error of all its readers on held-out rows; leaving the norm alone is one of the choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codtdq.methods.folding import fold_into_norm, foldable
from codtdq.methods.plus.scoring import Scorer
from codtdq.methods.workbench import Workbench
from codtdq.schemes.transforms import Transform

LIMIT = 1e4  # of s, around its median: beyond lie dead channels


def equalizing_scale(spread: Tensor, weight: Tensor, exponent: float) -> Tensor:
    """The scale s [C], its median 1; a channel that is dead on either side keeps 1."""
    alive = (spread > 1e-8) & (weight > 1e-12)
    scale = torch.where(
        alive, spread.clamp(min=1e-8) ** exponent / weight.clamp(min=1e-12) ** (1 - exponent), 1.0
    )
    if not bool(alive.any()):
        return torch.ones_like(scale)
    scale = scale / scale[alive].median()
    return torch.where(alive, scale.clamp(1 / LIMIT, LIMIT), torch.ones_like(scale))


def equalize_norm(
    bench: Workbench,
    norm: str,
    scorer: Scorer,
    exponents: tuple[float, ...],
    *,
    shift: bool,
    margin: float,
) -> Transform | None:
    """Choose and fold the best rescaling of a norm; what was folded, or None.

    margin: a more complicated choice must lower the error by this share.
    """
    if not foldable(bench, norm):
        return None
    shifts: list[Tensor | None] = [None]
    if shift and foldable(bench, norm, with_shift=True):
        shifts.append(scorer.mean())
    spread, weight = scorer.magnitude(), scorer.weight_magnitude()
    scales: list[Tensor | None] = [None]
    scales += [equalizing_scale(spread, weight, exponent) for exponent in exponents]
    best, error = Transform(), scorer.error(Transform())
    for moved in shifts:
        for scale in scales:
            trial = Transform(shift=moved, scale=scale)
            found = scorer.error(trial)
            if found < (1 - margin) * error:
                best, error = trial, found
    if best.trivial:
        return None
    scale = torch.ones_like(spread) if best.scale is None else best.scale
    fold_into_norm(bench, norm, scale, best.shift)
    return best
