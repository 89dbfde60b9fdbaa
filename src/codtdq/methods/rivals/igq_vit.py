"""IGQ-ViT: instance-aware group quantization.

J. Moon, D. Kim, J. Cheon, B. Ham, "Instance-Aware Group Quantization for Vision Transformers",
CVPR 2024. No code was released; the formulas are put together from summaries of the paper.

The ranges of channels differ, and they differ from image to image, so every image assigns its
channels to G quantizers that the layer shares. With (l_i, u_i) the range of quantizer i and X_c
channel c of one image:

    assignment     pi_c = argmin_i (max X_c - u_i)^2 + (min X_c - l_i)^2
    calibration    u_i, l_i = means of max X_c, min X_c over all (image, channel) with pi_c = i

Alternating the two is k-means on the points (min, max). The centres are means, so about half of
the channels are clipped a little: that is the method, a finer step for a shorter range.

Deviations: softmax attention stays float, as for every method here; the number of groups is the
same in all layers (the paper allots it under a budget of bit operations); convolutions are
included, with the extremes of a channel taken over the positions of one image (the paper
quantizes linear layers); the operator that reads the image, and inputs with a single position, of
which a channel has no range, get one static percentile range; a range always contains zero, so
that zero is a level; weights use the percentile search of `ranges.percentile_weight` (the paper's
percentile is not published). The rule for single positions was added after an 8-bit check on 16
test images of escnet-small failed without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.methods.collect import InputStats, collect_inputs, observe
from codtdq.methods.ranges import percentile_weight
from codtdq.methods.registry import SECOND_HAND, register_method
from codtdq.methods.rivals.per_token import percentile_input
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.operators.tokens import input_tokens
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.stored import BITS, Stored, one_of, rules, whole

_POINTS = 1 << 16  # (channel, group) distances are taken in parts of this many points


@dataclass(frozen=True, kw_only=True)
class IgqConfig(QuantConfig):
    """Settings of IGQ-ViT."""

    fold_norms: bool = True  # as the common setting of this family has it
    groups: int = 8  # quantizers that share the channels of a layer
    lloyd_steps: int = 25  # at most; k-means stops earlier once no point changes its group

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("groups", "lloyd_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; accepted: 1 or more")

    @property
    def range_per(self) -> str:
        """Channels that an image gives the same of `groups` ranges."""
        return "cluster of channels (their number: groups)"


class InstanceGroups(InputScheme):
    """G calibrated ranges; each image gives each of its channels the nearest one.

    low, high: [G]. positions: tokens of a calibration image, which share one assignment.
    """

    kind = "instance-groups"
    accepts = rules(bits=BITS, positions=whole(1))
    low: Tensor
    high: Tensor

    def __init__(
        self,
        bits: int,
        positions: int = 1,
        *,
        low: Tensor | None = None,
        high: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.code_bits, self.positions = bits, positions
        self.register_buffer("low", torch.zeros(1) if low is None else _own(low))
        self.register_buffer("high", torch.ones(1) if high is None else _own(high))

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """Both ends of as many ranges as there are groups."""
        groups = self.low.shape[0] if 1 <= self.low.numel() <= 256 else 1
        return dict.fromkeys(("low", "high"), one_of((groups,)))

    def assign(self, tokens: Tensor) -> Tensor:
        """Group [B, C] of every channel of every image of tokens [B, N, C]."""
        points = torch.stack([tokens.amin(1), tokens.amax(1)], dim=-1)
        centres = torch.stack([self.low, self.high], dim=-1)
        nearest, _ = nearest_centre(points.flatten(0, 1), centres)
        return nearest.view(points.shape[:2])

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize each channel with the range of its group."""
        if not tokens.numel():
            return tokens
        step, zero = grid_of(self.low, self.high, self.code_bits, symmetric=False)
        group = self.assign(tokens).unsqueeze(1)  # [B, 1, C]: one choice for all positions
        return fake_shifted(tokens, step[group], zero[group], *code_limits(self.code_bits, False))

    def bits(self, channels: int) -> float:
        """Codes, and the group index of a channel shared by all positions of the image."""
        return self.code_bits + math.ceil(math.log2(self.low.numel())) / self.positions

    def settings(self) -> dict[str, Any]:
        """Width, and how many positions share an assignment."""
        return {"bits": self.code_bits, "positions": self.positions}


@register_method(
    "igq-vit-12",
    config=IgqConfig,
    settings={"groups": 12},
    title="IGQ-ViT (12 groups)",
    source="Moon et al., CVPR 2024",
    evidence=SECOND_HAND,
    ranges="dynamic",
    granularity="12 groups of channels, assigned per image",
    act_bits="4 + 4/N",
    weight_bits="4 + 40/K",
    description="channels choose one of 12 calibrated ranges anew for every image (N positions)",
)
@register_method(
    "igq-vit",
    config=IgqConfig,
    title="IGQ-ViT",
    source="Moon et al., CVPR 2024",
    evidence=SECOND_HAND,
    ranges="dynamic",
    granularity="8 groups of channels, assigned per image",
    act_bits="4 + 3/N",
    weight_bits="4 + 40/K",
    description="channels choose one of 8 calibrated ranges anew for every image (N positions)",
)
def igq_vit(bench: Workbench) -> None:
    """Cluster the channel ranges of every operator's input on the float model."""
    active = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, active) if active else {}
    positions = _positions(bench, active)
    for site in bench.sites:
        inputs: InputScheme | None = None
        if site.act_bits is not None and (site.role == "first" or positions[site.name] == 1):
            inputs = percentile_input(stats[site.name].rows, site.act_bits)
        elif site.act_bits is not None:
            inputs = _grouped(bench, site, stats[site.name], positions[site.name])
        weight = None
        if site.weight_bits is not None:
            weight = percentile_weight(site.float_weight, site.weight_bits, group=site.weight_group)
        if inputs is not None or weight is not None:
            bench.install(site, inputs=inputs, weight=weight)


def _grouped(bench: Workbench, site: Site, seen: InputStats, positions: int) -> InstanceGroups:
    assert site.act_bits is not None
    points = torch.stack([seen.image_low.flatten(), seen.image_high.flatten()], dim=-1)
    generator = bench.generator("k-means", site.name)
    centres = cluster(points, bench.config.groups, generator, steps=bench.config.lloyd_steps)
    return InstanceGroups(site.act_bits, positions, low=centres[:, 0], high=centres[:, 1])


def cluster(points: Tensor, groups: int, generator: torch.Generator, *, steps: int = 25) -> Tensor:
    """k-means of points [P, D] -> centres [G, D]; fewer where fewer points are distinct."""
    return refine(points, spread_out(points, groups, generator), steps=steps)


def spread_out(points: Tensor, groups: int, generator: torch.Generator) -> Tensor:
    """Starting centres by k-means++: each next one is drawn in proportion to its squared
    distance from those already there.
    """
    first = int(torch.randint(points.shape[0], (1,), generator=generator))
    chosen = [points[first]]
    distance = (points - chosen[0]).square().sum(1)
    while len(chosen) < groups:
        share = distance.double().cumsum(0)
        if share[-1] <= 0:  # every point is a centre already
            break
        draw = torch.rand(1, generator=generator, dtype=torch.double) * share[-1]
        index = int(torch.searchsorted(share, draw, right=True).clamp(max=points.shape[0] - 1))
        chosen.append(points[index])
        distance = torch.minimum(distance, (points - chosen[-1]).square().sum(1))
    return torch.stack(chosen)


def refine(points: Tensor, centres: Tensor, *, steps: int = 25) -> Tensor:
    """Lloyd's steps: assign, average, until nothing changes. A centre that lost all its points
    moves to the point that is farthest from its own centre.
    """
    before: Tensor | None = None
    for _ in range(steps):
        group, distance = nearest_centre(points, centres)
        if before is not None and torch.equal(group, before):
            break
        before = group
        count = torch.bincount(group, minlength=len(centres))
        total = torch.zeros_like(centres).index_add_(0, group, points)
        centres = total / count.clamp(min=1).unsqueeze(1)
        for empty in (count == 0).nonzero().flatten().tolist():
            farthest = int(distance.argmax())
            centres[empty] = points[farthest]
            distance = torch.minimum(distance, (points - points[farthest]).square().sum(1))
    return centres


def nearest_centre(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Index of, and squared distance to, the nearest centre: points [P, D] -> [P], [P]."""
    index, distance = [], []
    for part in points.split(_POINTS):
        least = (part.unsqueeze(1) - centres).square().sum(-1).min(1)
        index.append(least.indices)
        distance.append(least.values)
    return torch.cat(index), torch.cat(distance)


def _own(ends: Tensor) -> Tensor:
    """A column of centres in memory of its own, as hashing and saving want it."""
    return ends.detach().float().clone(memory_format=torch.contiguous_format)


def _positions(bench: Workbench, sites: list[Site]) -> dict[str, int]:
    """Tokens per image at every site, on the first calibration image."""
    found: dict[str, int] = {}

    def see(site: Site, x: Tensor, y: Tensor) -> None:
        found[site.name] = input_tokens(site.module, x).shape[1]

    if sites:
        observe(bench, sites, see, images=1, label="measuring")
    return found


__all__ = ["IgqConfig", "InstanceGroups", "cluster", "igq_vit", "refine", "spread_out"]
