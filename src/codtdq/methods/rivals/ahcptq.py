"""AHCPTQ (Zhang, Shimada, Mori et al.: AHCPTQ: Accurate and Hardware-Compatible Post-Training
Quantization for Segment Anything Model, ICCV 2025), for linear and convolutional operators.

Inputs after a norm: channel groups with a static grid each (`channel_groups`), 4 in the end.
Inputs after GELU: hybrid log-uniform grids (`hluq`); of rho in {.1, .3, .5} and gamma in {1/8, 1/4,
    1/2} those with the least squared error of the operator's output, then s_l and s_u are learned.
Other inputs: static, per tensor, asymmetric, from averaged ranges, the step is learned.
Weights and reconstruction: as PTQ4SAM (`ptq4sam`): L2.4 grids, learned rounding, QDrop.

Deviations from the original:
- Pooled vectors have the range of all images, as in `ptq4sam`.
- Softmax and keys (adaptive-granularity grids, sign flips) are operands of matrix products, which
  are float here. Every operator is quantized, the image with 8 bits; the original leaves the patch
  embedding and the heads float.
- A group's grid spans its channels; the released code takes the mean step and zero-point of the
  group, which clips every channel that lies outside, at any width: on ESCNet's reduced keys 17 % of
  the input's power, which eight bits (.0116 of S) do not bring back and learning only in part.
- k-means sees steps and zero-points at unit deviation; the released code clusters raw pairs, which
  zero-points dominate. Its learning rate starts anew at each grouping; here it is one cosine.
- s_l and s_u learn from the derivative of the levels with codes held fixed.
- A block that did not improve keeps its starting grids: 4 groups that span averaged ranges.
- Budgets as in PTQ4SAM; the search of rho and gamma sees `search_images` images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.methods.collect import InputStats, collect_inputs, observe
from codtdq.methods.registry import FROM_CODE, register_method
from codtdq.methods.rivals.channel_groups import GROUPS, GroupedUniform, LearnedGroups
from codtdq.methods.rivals.hluq import HybridLogUniform, LearnedHybrid
from codtdq.methods.rivals.learning import LearnableInput, learnable_input
from codtdq.methods.rivals.ptq4sam import install_weight
from codtdq.methods.rivals.reconstruction import Reconstruction
from codtdq.methods.rivals.sam_grids import averaged_grid, averaged_range
from codtdq.methods.workbench import Workbench
from codtdq.operators.tokens import input_tokens, run_operator
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import StaticUniform

RHO = (0.1, 0.3, 0.5)
GAMMA = (0.125, 0.25, 0.5)


@dataclass(frozen=True, kw_only=True)
class AhcptqConfig(QuantConfig):
    """Settings of AHCPTQ."""

    groups: int = GROUPS  # of channels, in the end
    search_images: int = 16  # for rho and gamma

    @property
    def range_per(self) -> str:
        """Clusters behind norms."""
        return "tensor or cluster of channels (their number: groups)"


@register_method(
    "ahcptq",
    config=AhcptqConfig,
    title="AHCPTQ",
    source="Zhang et al., ICCV 2025",
    evidence=FROM_CODE,
    ranges="static",
    granularity="4 channel groups after norms, per tensor elsewhere",
    gradients=True,
    reconstructs=True,
    weight_bits="4 + 40/K",
    description="channel groups after norms, hybrid log-uniform after GELU, QDrop reconstruction",
)
def ahcptq(bench: Workbench) -> None:
    """Choose a grid by what made the input, then reconstruct."""
    config: AhcptqConfig = bench.config
    if not bench.quantizes:
        return
    engine = Reconstruction(bench)
    quantized = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, quantized) if quantized else {}
    grouped = {
        s.name: _channel_grids(s, stats[s.name]) for s in quantized if s.source.kind == "norm"
    }
    hybrid = _search_hybrids(
        bench, [s for s in quantized if s.source.kind == "gelu"], stats, config.search_images
    )
    for site in bench.sites:
        inputs: InputScheme | None = None
        if site.act_bits is not None:
            if site.name in grouped:
                start = grouped[site.name]
                inputs = GroupedUniform.of_channels(
                    start.step, start.zero, site.act_bits, config.groups
                )
            elif site.name in hybrid:
                inputs = hybrid[site.name]
            else:
                inputs = averaged_grid(stats[site.name], site.act_bits)
        install_weight(bench, site, site.float_weight.float(), inputs)

    def learnable(site: Site, quantizer: InputScheme) -> LearnableInput:
        if isinstance(quantizer, GroupedUniform):
            start = grouped[site.name]
            return LearnedGroups(start.step, start.zero, quantizer.code_bits, config.groups)
        if isinstance(quantizer, HybridLogUniform):
            return LearnedHybrid(quantizer)
        return learnable_input(quantizer)

    bench.notes["grids"] = {
        "channel groups": len(grouped),
        "hybrid": len(hybrid),
        "per tensor": len(quantized) - len(grouped) - len(hybrid),
    }
    engine.run(learnable=learnable)


def _channel_grids(site: Site, stats: InputStats) -> StaticUniform:
    assert site.act_bits is not None
    return averaged_grid(stats, site.act_bits, per_channel=True)


def _search_hybrids(
    bench: Workbench, sites: list[Site], stats: dict[str, InputStats], images: int
) -> dict[str, HybridLogUniform]:
    """The hybrid grid of each site with the least squared error of its output."""
    candidates: dict[str, list[HybridLogUniform]] = {}
    errors: dict[str, Tensor] = {}
    for site in sites:
        assert site.act_bits is not None
        low, high = averaged_range(stats[site.name])
        candidates[site.name] = [
            HybridLogUniform.spanning(low, high, site.act_bits, rho=rho, gamma=gamma)
            for rho in RHO
            for gamma in GAMMA
        ]
        errors[site.name] = torch.zeros(len(candidates[site.name]))

    def see(site: Site, x: Tensor, y: Tensor) -> None:
        tokens = input_tokens(site.module, x)
        for i, candidate in enumerate(candidates[site.name]):
            result = run_operator(site.module, candidate(tokens), site.float_weight, x)
            errors[site.name][i] += float((result - y).square().mean())

    if sites:
        observe(bench, sites, see, images=images)
    return {name: found[int(errors[name].argmin())] for name, found in candidates.items()}
