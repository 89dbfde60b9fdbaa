"""How well an operator would do with a transform: its output error on sampled calibration rows.

Both sides count: the activations on their run-time grids and the weight rounded to nearest in
groups. Taps of a convolution are scored as separate outputs of one pixel, which needs no images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from codtdq.methods.plus.rounding import nearest_codes, search_scales
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.transforms import Transform

ROWS = 1024  # that a score is measured on
HELD_OUT = 4  # one row in so many is kept for scores; statistics come from the others
_FACTORS = (1.0, 0.85)

MakeInput = Callable[[Site], InputScheme | None]


class Scorer:
    """Scores of transforms, for sites whose inputs are the same rows [R, C]."""

    def __init__(self, sites: list[Site], rows: Tensor, make_input: MakeInput) -> None:
        self.sites, self._make_input = sites, make_input
        held = torch.arange(len(rows)) % HELD_OUT == 0
        if len(rows) < 2 * HELD_OUT:
            held = torch.ones_like(held)  # nothing to spare: score what the statistics saw
        scored = rows[held]
        self.scored = scored[:: max(1, len(scored) // ROWS)]
        self.fitted = rows if bool(held.all()) else rows[~held]

    def error(self, transform: Transform) -> float:
        """Relative output error, summed over the sites."""
        return sum(self._error_of(site, transform) for site in self.sites)

    def magnitude(self) -> Tensor:
        """Root mean square [C] of the inputs around their means."""
        return self.fitted.std(0, correction=0)

    def mean(self) -> Tensor:
        """Mean [C] of the inputs."""
        return self.fitted.mean(0)

    def weight_magnitude(self) -> Tensor:
        """Root mean square [C] of the weights behind each channel, over all sites."""
        return (
            torch.stack([tap_rows(site.float_weight).square().mean(0) for site in self.sites])
            .mean(0)
            .sqrt()
        )

    def _error_of(self, site: Site, transform: Transform) -> float:
        x = transform.tokens(self.scored)
        weight = transform.columns(tap_rows(site.float_weight))
        inputs = self._make_input(site)
        x_hat = x if inputs is None else inputs(x.unsqueeze(0)).squeeze(0)
        w_hat = weight
        if site.weight_bits is not None:
            assert site.weight is not None
            group = site.weight.group_size
            index = torch.arange(weight.shape[1]) // (group or weight.shape[1])
            power = x.square().mean(0, keepdim=True)
            scales, _ = search_scales(
                weight[None],
                power,
                index,
                site.weight_bits,
                factors=_FACTORS,
                whole=site.weight.scales == "integer",
            )
            w_hat = nearest_codes(weight[None], scales, index, site.weight_bits).values[0]
        wanted = x @ weight.T
        return float((x_hat @ w_hat.T - wanted).square().sum() / _power(wanted))


def tap_rows(weight: Tensor) -> Tensor:
    """[O, C, *taps] -> [O * taps, C]: every tap as an output of its own."""
    return weight.movedim(1, -1).reshape(-1, weight.shape[1])


def _power(wanted: Tensor) -> Tensor:
    """Power of outputs around their mean: a shift must not look good by a large constant."""
    return (wanted - wanted.mean(0)).square().sum().clamp(min=1e-12)
