"""RepQ-ViT: calibrate per channel behind norms, deploy per tensor by folding.

Li, Xiao, Yang, Gu: RepQ-ViT: Scale Reparameterization for Post-Training Quantization of Vision
Transformers, ICCV 2023. With (s_c, z_c) the asymmetric grid of channel c of a norm's output,

    s~ = mean(s), z~ = round(mean(z)), r1 = s / s~, r2 = z - z~
    norm:       gamma~ = gamma / r1             beta~ = (beta + s r2) / r1
    operators:  W~[:, c] = r1_c W[:, c]         b~ = b - W (s r2)

one grid (s~, z~) for the whole folded tensor gives the codes of the per-channel grids. All grids
lie between the percentiles p and 1 - p, p of 0.999, 0.9999, 0.99999, by least mean squared error.
Every quantizer is set inside one forward pass, on what the quantized operators before it give;
then norms are folded and the weights behind them are quantized anew.

Deviations from the released code:
- Linear and Conv inputs and weights only; softmax (its log-sqrt2 scheme) and the two products of
  attention stay float, as for every method here.
- z~ is rounded: with the float mean of the release, folded and per-channel codes differ.
- Padded windows get the image of zero, s~ r2, after a fold (the release pads with 0). A channel
  whose range does not reach zero clips it, as it does before the fold.
- Any norm that only operators read is folded, once for all its readers; one that cannot take the
  fold itself leaves it to its operators. Before a convolution that pads with zeros no shift is
  exact: all channels share z~ from the start there, and each step is the least that covers its
  channel's range (r2 = 0).
- Steps below 1e-4 of a norm's largest are raised to that: a channel that is constant in
  calibration has no step of its own.
- The image is read with 8 bits, every other input with `act_bits` (the detection release's rule).
- An operator that runs several times per image gets its grid from the float inputs of all runs;
  one set inside the first run would clip the others.
- Percentiles are taken over at most `values` evenly spaced values of each input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.methods.collect import collect_inputs, initialise_in_order
from codtdq.methods.folding import (
    can_rescale_at_operator,
    fold_into_norm,
    foldable,
    norm_groups,
    rescale_at_operator,
)
from codtdq.methods.ranges import percentile_grid, percentile_weight
from codtdq.methods.registry import FROM_CODE, register_method
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import nearest
from codtdq.operators.tokens import input_tokens
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.weights import FloatWeight

STEP_FLOOR = 1e-4  # of the largest step of the same norm

Grid = tuple[Tensor, Tensor]  # (step, zero), each [C] or [1]


@dataclass(frozen=True, kw_only=True)
class RepQViTConfig(QuantConfig):
    """How much data the percentiles see."""

    fold_norms: bool = True  # as the common setting of this family has it
    images: int = 128
    values: int = 1 << 20  # of one input that enter the percentiles


@register_method(
    "repq-vit",
    config=RepQViTConfig,
    title="RepQ-ViT",
    source="Li et al., ICCV 2023",
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor; per channel behind norms, folded",
    act_bits="4",
    weight_bits="4 + 40/K",
    description="per-channel ranges behind norms, folded into the norms and the next weights",
)
def repq_vit(bench: Workbench) -> None:
    """Set every quantizer in one pass, then fold the per-channel ones."""
    sites = bench.sites
    weights = {site.name: site.float_weight.clone() for site in sites}
    groups = {
        norm: group
        for norm, group in norm_groups(bench).items()
        if len({site.act_bits for site in group}) == 1
    }
    norm_of = {site.name: norm for norm, group in groups.items() for site in group}
    repeated = [site for site in sites if bench.graph.calls[site.name] > 1 and site.act_bits]
    all_calls = collect_inputs(bench, repeated, images=bench.config.images) if repeated else {}
    grids: dict[str, Grid] = {}
    for site in sites:
        bench.install(site)  # so that the pass below only exchanges parts

    def start(site: Site, x: Tensor) -> None:
        weight = None
        if site.weight_bits is not None:
            weight = percentile_weight(
                weights[site.name], site.weight_bits, group=site.weight_group
            )
        if site.act_bits is None:
            bench.install(site, weight=weight)
            return
        rows = input_tokens(site.module, x).flatten(0, 1)  # [N, C]
        if site.name in all_calls:
            rows = all_calls[site.name].rows  # the first call is not like the others
        norm = norm_of.get(site.name)
        if norm is None:
            step, zero = tensor_grid(rows, site.act_bits, bench.config.values)
        else:
            if norm not in grids:
                shifted = _takes_shift(bench, norm, groups[norm])
                grid = channel_grids(rows, site.act_bits, bench.config.values, anywhere=shifted)
                grids[norm] = grid if shifted else with_common_zero(*grid, site.act_bits)
            step, zero = grids[norm]
        bench.install(
            site, inputs=StaticUniform(site.act_bits, step=step, zero=zero), weight=weight
        )

    initialise_in_order(bench, sites, start, bench.joint_batch(bench.config.images))
    spread: dict[str, float] = {}
    explicit: list[str] = []
    for norm, (step, zero) in grids.items():
        for site in groups[norm]:
            bench.install(site, weight=FloatWeight.of(weights[site.name]))
        bits = groups[norm][0].act_bits
        assert bits is not None
        scale, shift, grid = reparameterize(step, zero, bits)
        if not _fold(bench, norm, groups[norm], scale, shift, grid):
            explicit.append(norm)
        spread[norm] = round(float(scale.max() / scale.min()), 3)
    bench.notes.update(r1_max_over_min=spread, explicit_norms=explicit)


def reparameterize(step: Tensor, zero: Tensor, bits: int = 4) -> tuple[Tensor, Tensor | None, Grid]:
    """Per-channel grids [C] -> scale r1 [C], shift -s r2 [C], and the common grid (s~, z~), [1].

    (x - shift) / scale on the common grid has the codes of x on its channel's grid. No shift (None)
    if all zero-points are one. Any whole z~ does; a code of the grid is the natural one.
    """
    common_step = step.mean().reshape(1)
    common_zero = nearest(zero.mean()).clamp(0, 2**bits - 1).reshape(1)
    shift = -step * (zero - common_zero)
    grid = (common_step, common_zero)
    return step / common_step, shift if bool(shift.any()) else None, grid


def with_common_zero(step: Tensor, zero: Tensor, bits: int) -> Grid:
    """Grids [C] with one zero-point, the rounded mean, that cover the ranges of the given ones."""
    top = 2**bits - 1
    common = nearest(zero.mean()).clamp(1, top - 1)
    wide = step * torch.maximum(zero / common, (top - zero) / (top - common))
    return wide, common.expand_as(wide)


def channel_grids(rows: Tensor, bits: int, values: int, *, anywhere: bool = True) -> Grid:
    """(step, zero), each [C], of rows [N, C].

    anywhere: a channel's range need not contain zero; the shift of the fold makes up for it.
    """
    rows = _spaced(rows, max(1, values // rows.shape[1]))
    step, zero = percentile_grid(rows.T.contiguous(), bits, anywhere=anywhere)
    raised = step.clamp(min=float(step.max()) * STEP_FLOOR)
    return raised.flatten(), nearest(zero * step / raised).flatten()


def tensor_grid(rows: Tensor, bits: int, values: int) -> Grid:
    """(step, zero), each [1], of rows [N, C]."""
    step, zero = percentile_grid(
        _spaced(rows, max(1, values // rows.shape[1])).reshape(1, -1), bits
    )
    return step.flatten(), zero.flatten()


def _spaced(rows: Tensor, count: int) -> Tensor:
    if rows.shape[0] <= count:
        return rows
    return rows[torch.linspace(0, rows.shape[0] - 1, count).long()]


def _takes_shift(bench: Workbench, norm: str, group: list[Site]) -> bool:
    """Whether a shift can be folded into a norm, or at least into all its readers."""
    at_operators = all(can_rescale_at_operator(site, with_shift=True) for site in group)
    return foldable(bench, norm, with_shift=True) or at_operators


def _fold(
    bench: Workbench, norm: str, group: list[Site], scale: Tensor, shift: Tensor | None, grid: Grid
) -> bool:
    """Exchange the per-channel grids of a norm's readers; False if the norm could not take part."""
    folded = fold_into_norm(bench, norm, scale, shift)
    for site in group:
        assert site.act_bits is not None
        inputs = StaticUniform(site.act_bits, step=grid[0], zero=grid[1])
        if folded:
            bench.install(site, inputs=inputs)
        else:
            rescale_at_operator(bench, site, inputs, scale, shift)
        if site.weight_bits is not None:
            bench.install(
                site,
                weight=percentile_weight(
                    site.float_weight, site.weight_bits, group=site.weight_group
                ),
            )
    return folded
