"""Eta and rho_0 of a few token groups under their base radius and under the projected one."""

from __future__ import annotations

import dataclasses

import torch

from codtdq.lab.diagnosis.groups import CONSTANT, Observation
from codtdq.lab.diagnosis.record import GroupSample
from codtdq.numerics import ActivationResult, quantize

GROUP_TOKENS = 512  # at most so many of one input, evenly spaced


def group_sample(seen: Observation) -> GroupSample | None:
    """Quantize some tokens as the model does, and once more without C1 and C2.

    Both numbers are the quantizer's own: groups lie within tokens, so that a token alone gives
    what it gave among the others. None for inputs without token groups or without a bound.
    """
    if seen.result is None or not seen.grouped:
        return None
    spec = seen.result.spec
    if spec.tau is None and spec.zero_ratio is None:
        return None
    tokens = torch.arange(0, len(seen.x), -(-len(seen.x) // GROUP_TOKENS))
    x = seen.x[tokens]
    before = quantize(x, dataclasses.replace(spec, tau=None, zero_ratio=None))
    after = quantize(x, spec)
    labels = seen.labels[tokens] if seen.labels is not None else torch.full((len(x),), -1)
    varied = (before.sigma >= CONSTANT).flatten()

    def numbers(result: ActivationResult) -> tuple[torch.Tensor, torch.Tensor]:
        return result.eta.flatten()[varied], result.zero_mass.flatten()[varied]

    (eta_before, rho0_before), (eta_after, rho0_after) = numbers(before), numbers(after)
    groups = varied.numel() // max(len(x), 1)
    return GroupSample(
        tau=spec.tau,
        zr=spec.zero_ratio,
        eta_before=eta_before.numpy(),
        eta_after=eta_after.numpy(),
        rho0_before=rho0_before.numpy(),
        rho0_after=rho0_after.numpy(),
        boundary=labels.repeat_interleave(groups)[varied].to(torch.int8).numpy(),
    )
