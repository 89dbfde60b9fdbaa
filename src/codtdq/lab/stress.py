"""A model with outlier channels: the same float function, activations like those of large ViTs.

Large vision transformers have a few channels behind their norms that are 20 to 100 times as large
as the median channel; small networks do not. `plant_outliers` gives a small one the same problem
without changing what it computes: it multiplies some channels of each norm and divides the
columns of the weights that read them.

Two things to keep in mind when reading its rows: a 4-bit weight with one scale per output channel
rounds the divided columns to zero, whatever happens to the activations; and what is planted is
just what methods that rescale norms (SmoothQuant, RepQ-ViT, FIMA-Q) can undo.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import ConfigError, UnsupportedError
from codtdq.operators.calibration import CalibrationContext, run_calibration
from codtdq.operators.rescale import obstacle_to_rescaling, rescale_norm
from codtdq.planning.trace import NormUse, trace

SPREAD = 1.5  # targets lie between strength / SPREAD and strength * SPREAD: 40 to 90 by default
_ALIVE = 0.1  # of the median: a smaller channel would need an extreme factor


def plant_outliers(
    model: nn.Module, batch: Any, *, strength: float = 60.0, channels: float = 0.02, seed: int = 0
) -> nn.Module:
    """A copy of a float model, in eval mode, with outlier channels at every norm that allows it.

    batch: images on which magnitudes are measured (a tensor, a tuple of arguments or a dict).
    strength: the middle of the largest-to-median ratios, each drawn log-uniformly.
    channels: share of the channels of a norm that become outliers, at least one.

    The result's `stress` attribute says what was planted: {"kind": "outliers", ..., "ratios":
    {norm: largest channel over the median channel, both as maxima over the batch}}.
    """
    if not strength > SPREAD:
        raise ConfigError(f"strength is {strength!r}; accepted: a ratio above {SPREAD}, e.g. 60")
    if not 0 < channels < 0.5:
        raise ConfigError(f"channels is {channels!r}; accepted: a share between 0 and 0.5")
    model = copy.deepcopy(model).eval()
    graph = trace(model, batch)
    uses = [
        use
        for use in graph.norms.values()
        if use.channels > 2 and obstacle_to_rescaling(model, use, with_shift=False) is None
    ]
    magnitudes = _channel_magnitudes(model, uses, batch)
    generator = torch.Generator().manual_seed(seed)
    ratios: dict[str, float] = {}
    for use in uses:
        factors, ratio = _factors(magnitudes[use.name], strength, channels, generator)
        if ratio:
            rescale_norm(model, use, 1.0 / factors.float())
            ratios[use.name] = ratio
    if not ratios:
        raise UnsupportedError(
            f"{type(model).__name__} has no norm that only Linear or Conv operators read; "
            "outlier channels can be planted nowhere"
        )
    record = {"kind": "outliers", "strength": strength, "channels": channels, "seed": seed}
    model.stress = {**record, "ratios": ratios}  # type: ignore[assignment]
    return model


def _factors(
    magnitude: Tensor, strength: float, share: float, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Factor of each channel [C], and the largest ratio they make; 0 if no channel is alive."""
    count = max(1, round(share * len(magnitude)))
    order = torch.randperm(len(magnitude), generator=generator)
    draws = torch.rand(len(magnitude), generator=generator, dtype=torch.float64)
    alive = magnitude[order] > _ALIVE * magnitude.median()
    picked = order[alive][:count]
    others = magnitude.clone()
    others[picked] = math.inf  # where they will be: above the median
    median = others.median()
    factors = torch.ones_like(magnitude)
    if not len(picked) or not 0 < float(median) < math.inf:
        return factors, 0.0
    low, high = math.log(strength / SPREAD), math.log(strength * SPREAD)
    targets = torch.exp(low + (high - low) * draws[: len(picked)])
    factors[picked] = targets * median / magnitude[picked]
    return factors, float(targets.max())


def _channel_magnitudes(model: nn.Module, uses: list[NormUse], batch: Any) -> dict[str, Tensor]:
    """Largest magnitude of each channel [C], float64, as the first reader of each norm sees it."""
    batches = batch.split(1) if isinstance(batch, Tensor) else [batch]
    stats = run_calibration(model, batches, CalibrationContext(model, conv=True)).channels
    found = {use.name: stats[use.consumers[0]].absmax for use in uses}
    return {name: absmax.double() for name, absmax in found.items() if absmax is not None}
