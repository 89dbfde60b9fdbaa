"""Which transform an operator gets: tried one after another, kept if better on held-out rows."""

from __future__ import annotations

from dataclasses import replace

from codtdq.methods.plus.equalize import equalizing_scale
from codtdq.methods.plus.scoring import Scorer
from codtdq.numerics.rotation import BLOCK
from codtdq.operators.rescale import takes_shift
from codtdq.schemes.transforms import Transform

EXPONENT = 0.5  # of a scale that the operator applies itself
KINDS = ("shift", "scale", "order", "hadamard")


def choose_transform(scorer: Scorer, allowed: tuple[str, ...], margin: float) -> Transform:
    """The best chain of `allowed` ingredients for one operator.

    Each is added to what has been kept so far if the output error falls by more than `margin`.
    """
    (site,) = scorer.sites
    best, error = Transform(), scorer.error(Transform())
    for kind in allowed:
        trial = _with(best, kind, scorer)
        if kind == "shift" and not takes_shift(site.module):
            continue
        if trial is None:
            continue
        found = scorer.error(trial)
        if found < (1 - margin) * error:
            best, error = trial, found
    return best


def _with(transform: Transform, kind: str, scorer: Scorer) -> Transform | None:
    channels = scorer.scored.shape[1]
    if kind == "shift":
        return replace(transform, shift=scorer.mean())
    if kind == "scale":
        scale = equalizing_scale(scorer.magnitude(), scorer.weight_magnitude(), EXPONENT)
        return replace(transform, scale=scale)
    if channels <= BLOCK and kind == "order":
        return None  # a single group has no order
    if kind == "order":
        spread = scorer.magnitude()
        spread = spread if transform.scale is None else spread / transform.scale
        return replace(transform, order=spread.argsort(stable=True))
    return replace(transform, hadamard=True) if channels >= BLOCK else None
