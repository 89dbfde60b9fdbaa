"""Two-peaked inputs: the test and the sign flips of PTQ4SAM's BIG, for operator inputs.

Bimodal: the kernel density of the pooled values, on 128 points, has exactly two peaks of at least
1 % of the summed density and 32 points apart. Then channel c is multiplied by the sign of its mean,
which folds the two peaks onto one side; W[:, c] takes the same sign, so the product is unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

POINTS, SPACING, HEIGHT = 128, 32, 0.01
SAMPLES = 4096  # pooled values that the density is estimated from


def flips_of(rows: Tensor) -> Tensor | None:
    """Signs [C] for rows [R, C], or None where the inputs are not bimodal."""
    from scipy.signal import find_peaks
    from scipy.stats import gaussian_kde

    values = rows.flatten().double()
    # at random: every n-th value would always be of the same channels
    order = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(0))
    values = values[order[:SAMPLES]]
    if float(values.std()) == 0.0:
        return None
    points = torch.linspace(float(values.min()), float(values.max()), POINTS).double()
    density = gaussian_kde(values.numpy())(points.numpy())
    peaks, _ = find_peaks(density, height=HEIGHT * density.sum(), distance=SPACING)
    if len(peaks) != 2:
        return None
    signs = torch.where(rows.mean(0) < 0, -1.0, 1.0)
    return signs if bool((signs < 0).any()) else None


def flip_columns(module: nn.Module, weight: Tensor, signs: Tensor) -> Tensor:
    """The weight that gives the same result for x * signs, grouped convolutions included."""
    groups = int(getattr(module, "groups", 1))
    per_group = signs.view(groups, 1, -1, *[1] * (weight.ndim - 2))
    return (weight.unflatten(0, (groups, -1)) * per_group).flatten(0, 1)
