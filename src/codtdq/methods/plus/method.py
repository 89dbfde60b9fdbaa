"""cod-tdq-plus: four bits that a user cannot tell from float, on any Linear and convolution.

Activations are quantized at run time, weights once; 128 calibration images, no masks, no training.
One file per ingredient in `plus/`, each with its switch in `PlusConfig`:

- groups along the axis that an operator contracts (`act_group_size`): 32 channels of a token for
  Linear and dense convolutions (`TokenCarriers`), 32 pixels of a channel for depthwise ones
  (`PixelCarriers`), each with a zero-point (`token_zero`, `pixel_zero`) and a whole multiplier 1..8
  of a float32 per token or image (`scales`): 4 + 7/32 bits;
- a range per group that weighs clipping, rounding and zeroed evidence (`trials`, `zero_weight`);
- norms rescaled so that no channel sticks out (`equalize`, `exponents`): cancels outlier channels;
- a transform per operator, kept only if it lowers the error on held-out rows (`transforms`,
  `margin`): channel means, scales, channel order, a 32-point Hadamard rotation;
- weights in groups of 32 per tap, whole multipliers of a float32 per output (`weight_group_size`,
  `search`): 4 + 5/32 bits.
  Operators are fitted in running order, each against the inputs that the quantized network gives
  it and the outputs that the float network wants (`sequence`, `lockstep`): a ridge-shifted target
  (`ridges`, by held-out images), rounding that compensates its errors (`compensate`), coordinate
  descent over codes and scales (`sweeps`), and the bias last (`correct_bias`);
- off by default: a budget of bits for operators whose rounding the mask feels (`spare_act_bits`,
  `spare_weight_bits`; `spending`).

`base` puts the ranges of a preset underneath, so that one ingredient can be added to the paper's
method at a time (`base_ranges`).

Products are those of integer engines: y = u v (sum of m (q_x - z) times p q_w), both factors signed
bytes, one exact sum whatever the groups (`numerics.carrier`). Scales, shifts and orders fold into
the operator before, or are applied while its output is quantized; the rotation is 5 additions per
value.

The image itself has 8 static bits, as for every method here; attention's own products stay float.
An operator that runs several times per image (a shared head) is fitted on its first call, with the
float weight as target and its own bias: a fit to one call need not suit the others. A convolution
of more than 9216 columns is fitted tap by tap (`wide`): its matrix of moments has no room.

Settings were chosen on 24 images of camosynth/val by the agreement with the float masks, after 16
calibration images; test splits were looked at once, for confirmation. The script
`benchmarks/plus_ingredients.py` shows what each is worth: left out, and alone on cod-tdq.
"""

from __future__ import annotations

from typing import Any

import torch

from codtdq.methods.block_state import fingerprint
from codtdq.methods.collect import InputStats, collect_inputs
from codtdq.methods.folding import norm_groups
from codtdq.methods.plus.base_ranges import base_specs
from codtdq.methods.plus.choosing import choose_transform
from codtdq.methods.plus.config import PlusConfig
from codtdq.methods.plus.equalize import equalize_norm
from codtdq.methods.plus.layer import LayerSettings
from codtdq.methods.plus.schemes import input_scheme, sketch
from codtdq.methods.plus.scoring import MakeInput, Scorer
from codtdq.methods.plus.sequence import fit_in_order
from codtdq.methods.plus.spending import spend_bits
from codtdq.methods.plus.state import FittedFiles
from codtdq.methods.registry import OWN, register_method
from codtdq.methods.workbench import Workbench
from codtdq.numerics.packing import NIBBLE_BITS
from codtdq.planning.plan import Site
from codtdq.progress import track
from codtdq.schemes.base import InputScheme
from codtdq.schemes.transforms import Transform, Transformed
from codtdq.schemes.weight_groups import FEW_CHANNELS
from codtdq.schemes.weights import FloatWeight

STATE_FORMAT = 3  # of what a stopped calibration leaves; raised when operators are fitted otherwise


@register_method(
    "cod-tdq-plus",
    config=PlusConfig,
    sketch=sketch,
    title="COD-TDQ plus",
    source="this project",
    evidence=OWN,
    ranges="dynamic",
    granularity="token x 32 channels; depthwise: 32 pixels x channel",
    act_bits="4 + 7/32 + 32/K",
    weight_bits="4 + 5/32 + 32/K",
    description="zero-point groups along the contracted axis, equalised norms, weights rounded "
    "against the quantized network",
)
def cod_tdq_plus(bench: Workbench) -> None:
    """Transforms from one pass, then all operators in running order."""
    config: PlusConfig = bench.config
    files = None
    if bench.state_dir is not None:
        about = {"method": "cod-tdq-plus", "format": STATE_FORMAT}
        key = fingerprint(bench, bench.batches(config.images), about)
        files = FittedFiles(bench.state_dir, key)
    floating = bench.floating()
    stats = collect_inputs(bench, images=config.images)
    chosen = choose_all(bench, stats)
    stats.clear()  # rows of every operator: room for the images side by side
    facts: dict[str, Any] = {}
    if any(site.weight is not None for site in bench.sites):
        settings = LayerSettings(
            config.weight_bits or NIBBLE_BITS,  # each site brings its own width and group
            config.weight_group_size or 0,
            config.compensate,
            config.sweeps,
            tuple(config.ridges),
            config.correct_bias,
            config.search,
            config.scales == "integer",
        )
        facts = fit_in_order(bench, floating, settings, config.images, files)
    bench.notes.update(chosen)
    bench.notes["operators"] = facts


def choose_all(bench: Workbench, stats: dict[str, InputStats]) -> dict[str, Any]:
    """Fold norms, choose each operator's transform and width, install its input quantizer."""
    config: PlusConfig = bench.config
    scheme = scheme_maker(bench, stats)
    folded, used = choose_transforms(bench, stats, scheme)
    notes: dict[str, Any] = {"folded": folded}
    if config.spare_act_bits or config.spare_weight_bits:
        notes["widened"] = spend_bits(
            bench, scheme, used, config.spare_act_bits, config.spare_weight_bits
        )
    for site in bench.sites:
        install_transform(bench, site, scheme(site), used.get(site.name, Transform()))
    parts = {name: transform.parts() for name, transform in used.items() if transform.parts()}
    return {**notes, "transforms": parts}


def scheme_maker(bench: Workbench, stats: dict[str, InputStats]) -> MakeInput:
    """What quantizes the input of a site, as the config says."""
    config: PlusConfig = bench.config
    base = base_specs(bench, config.base) if config.base else {}
    return lambda site: input_scheme(site, stats[site.name], config, base.get(site.name))


def choose_transforms(
    bench: Workbench, stats: dict[str, InputStats], scheme: MakeInput
) -> tuple[dict[str, list[str]], dict[str, Transform]]:
    """Fold norms; returns what went into which, and the transform of every operator."""
    config: PlusConfig = bench.config
    rows = {name: stat.rows for name, stat in stats.items()}
    folded: dict[str, list[str]] = {}
    groups = norm_groups(bench) if config.equalize else {}
    for norm, readers in track(groups.items(), "searching scales of norms", len(groups)):
        dense = [site for site in readers if _is_dense(site)]
        if not dense or not _alike(dense, readers) or all(map(_is_float, dense)):
            continue
        scorer = Scorer(dense, rows[dense[0].name], scheme)
        best = equalize_norm(
            bench,
            norm,
            scorer,
            tuple(config.exponents),
            shift="shift" in config.transforms,
            margin=config.margin,
        )
        if best is not None:
            folded[norm] = best.parts()
            for site in readers:
                rows[site.name] = best.tokens(rows[site.name])
    used: dict[str, Transform] = {}
    for site in track(bench.sites, "searching input formats"):
        allowed = tuple(config.transforms)
        if allowed and _is_dense(site) and not _is_float(site) and site.role != "first":
            scorer = Scorer([site], rows[site.name], scheme)
            used[site.name] = choose_transform(scorer, allowed, config.margin)
    return folded, used


def install_transform(
    bench: Workbench, site: Site, inner: InputScheme | None, transform: Transform
) -> None:
    """Install a site with its input quantizer, its weight float and transformed."""
    if transform.trivial or inner is None:
        bench.install(site, inputs=inner)
        return
    weight = site.float_weight
    if transform.shift is not None:
        moved = torch.einsum("oc...,c->o", weight, transform.shift)
        bias = site.module._parameters.get("bias")
        total = moved if bias is None else bias.detach() + moved
        site.module.bias = torch.nn.Parameter(total, requires_grad=False)
    changed = transform.columns(weight.movedim(1, -1)).movedim(-1, 1).contiguous()
    bench.install(site, inputs=Transformed(inner, transform=transform))
    bench.install(site, weight=FloatWeight.of(changed))


def _is_dense(site: Site) -> bool:
    """Whether all channels of a token meet in one product."""
    return int(getattr(site.module, "groups", 1)) == 1 and site.channels >= FEW_CHANNELS


def _alike(dense: list[Site], readers: list[Site]) -> bool:
    """Whether the readers that are not dense are depthwise: those absorb any scale at no cost."""
    return all(site in dense or site.kind == "depthwise" for site in readers)


def _is_float(site: Site) -> bool:
    return not site.quantized
