"""Which scheme quantizes the input of an operator, and the method's plan before any calibration."""

from __future__ import annotations

import dataclasses

from codtdq.methods.collect import InputStats, collect_inputs
from codtdq.methods.plus.base_ranges import base_specs
from codtdq.methods.plus.config import PlusConfig
from codtdq.methods.workbench import Workbench
from codtdq.numerics import ActivationSpec
from codtdq.planning.plan import Site
from codtdq.planning.units import projected_input, unit_of
from codtdq.schemes.base import InputScheme
from codtdq.schemes.carried import PixelCarriers, StaticCarriers, TokenCarriers
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.multiplied import MultipliedWeight
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.projected import GROUPED
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.weight_groups import FEW_CHANNELS, GroupedWeight


def input_scheme(
    site: Site, stat: InputStats, config: PlusConfig, base: ActivationSpec | None = None
) -> InputScheme | None:
    """What quantizes the input of a site; None: it stays float. base: a preset's wish for it."""
    if site.activation is None:
        return None
    assert site.act_bits is not None
    if site.role == "first":
        low, high = stat.low.min().reshape(1), stat.high.max().reshape(1)
        if config.scales == "integer":
            return StaticCarriers.spanning(low, high, site.act_bits, unit_of(site.module, "tensor"))
        return StaticUniform.spanning(low, high, site.act_bits)
    pixels = (
        config.pixel_groups
        and site.kind != "linear"
        and (site.kind == "depthwise" or site.channels < FEW_CHANNELS)
    )
    if base is not None and not pixels:
        shared = base.mode != GROUPED and not config.everywhere
        if shared or (config.trials == 1 and config.token_zero == "none"):
            mode = base.mode if shared else GROUPED
            spec = dataclasses.replace(base, mode=mode, bits=site.act_bits, scales=config.scales)
            return projected_input(site.module, spec)
    zero_point = config.pixel_zero if pixels else config.token_zero
    settings = site.act_bits, site.activation.group_size, config.trials, config.zero_weight
    if config.scales == "float":
        scheme = PixelGroups if pixels else TokenGroups
        return scheme(*settings, zero_point, stat.positions)
    carriers = PixelCarriers if pixels else TokenCarriers
    unit = unit_of(site.module, carriers.ranges)
    return carriers(*settings, zero_point == "inside", stat.positions, unit)


def weight_group(site: Site) -> int:
    """Inputs of a tap that share a scale; 0: all of an output's."""
    return 0 if site.weight is None else site.weight.group_size or 0


def sketch(bench: Workbench) -> None:
    """Install all schemes, with blank weights: formats and bits are known before any image is."""
    config: PlusConfig = bench.config
    base = base_specs(bench, config.base) if config.base else {}
    stats = collect_inputs(bench, images=1)
    for site in bench.sites:
        store = None
        if site.weight_bits is not None:
            group = weight_group(site)
            kind = MultipliedWeight if config.scales == "integer" else GroupedWeight
            store = kind.blank(site.float_weight.shape, site.weight_bits, group)
        scheme = input_scheme(site, stats[site.name], config, base.get(site.name))
        bench.install(site, inputs=scheme, weight=store, blank=True)
