"""SmoothQuant: move the magnitude of outlier channels from activations into weights.

Xiao, Lin, Seznec, Wu, Demouth, Han: SmoothQuant: Accurate and Efficient Post-Training Quantization
for Large Language Models, ICML 2023. With a_j the largest magnitude of input channel j over the
calibration images and w_j that of the weights that multiply it, over all operators that read it,

    s_j = max(a_j^alpha / max(w_j, 1e-5)^(1 - alpha), 1e-5)     x'_j = x_j / s_j     W'_j = s_j W_j

1/s goes into the norm before the operators. Then symmetric absolute-maximum grids: weights per
output channel, activations per token at run time (`smoothquant`, the paper's O1) or one fixed
range per tensor (`smoothquant-static`, O3).

Deviations from the released code, which smooths LayerNorm -> qkv and LayerNorm -> fc1 only:
- Every Linear and Conv is smoothed. Where no norm can take 1/s (GELU, attention, several
  readers), the operator divides its input itself.
- Depthwise convolutions use alpha = 1: each output channel has one input channel, whose scale the
  output channel's own weight grid absorbs at no cost.
- A channel that was zero in all of calibration keeps s = 1: the release's floor would multiply
  whatever appears there later by 1e5.
- Weights have a scale per output channel, as in the release (the paper's levels: per tensor);
  pixels of convolutions count as tokens and have their own range in O1.
- 4-bit grids; the paper has 8-bit ones. Attention's two products stay float, as for every method
  here. The image is read with 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.methods.collect import collect_inputs
from codtdq.methods.folding import fold_into_norm, norm_groups, rescale_at_operator
from codtdq.methods.registry import FROM_CODE, register_method
from codtdq.methods.workbench import Workbench
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import DynamicToken, FloatInput, StaticUniform
from codtdq.schemes.weights import UniformWeight

FLOOR = 1e-5  # of weight magnitudes and of s


@dataclass(frozen=True, kw_only=True)
class SmoothQuantConfig(QuantConfig):
    """Where the magnitude goes, and how activations are quantized."""

    alpha: float = 0.5  # 0: all channels of the weights alike; 1: all channels of the activations
    dynamic: bool = True  # per token at run time (O1), or one fixed range per tensor (O3)
    images: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha is {self.alpha!r}; accepted: 0 to 1")

    @property
    def range_per(self) -> str:
        """Rows at run time, or one fixed range."""
        return "token" if self.dynamic else "tensor"


@register_method(
    "smoothquant-static",
    config=SmoothQuantConfig,
    settings={"dynamic": False},
    title="SmoothQuant (O3, static)",
    source="Xiao et al., ICML 2023",
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor",
    act_bits="4",
    description="channel magnitudes moved into the weights; one fixed range per tensor",
)
@register_method(
    "smoothquant",
    config=SmoothQuantConfig,
    title="SmoothQuant (O1, dynamic)",
    source="Xiao et al., ICML 2023",
    evidence=FROM_CODE,
    ranges="dynamic",
    granularity="per token",
    act_bits="4 + 32/C",
    description="channel magnitudes moved into the weights; a range per token at run time",
)
def smoothquant(bench: Workbench) -> None:
    """Smooth every group of operators that read one tensor, then quantize them."""
    stats = collect_inputs(bench, images=bench.config.images)
    folded = 0
    groups = reader_groups(bench)
    for norm, group in groups:
        peak = torch.stack([stats[site.name].absmax for site in group]).amax(0)
        scale = smoothing_scale(peak, group, bench.config.alpha)
        taken = norm is not None and fold_into_norm(bench, norm, scale)
        folded += taken
        radius = (peak / scale).max().reshape(1)
        for site in group:
            inner = _input_scheme(site, radius, bench.config.dynamic)
            if taken:
                bench.install(site, inputs=inner)
            else:
                rescale_at_operator(bench, site, inner, scale)
            if site.weight_bits is not None:
                bench.install(
                    site,
                    weight=UniformWeight.minmax(
                        site.float_weight, site.weight_bits, group=site.weight_group
                    ),
                )
    bench.notes.update(folded_groups=folded, explicit_groups=len(groups) - folded)


def reader_groups(bench: Workbench) -> list[tuple[str | None, list[Site]]]:
    """(norm or None, the sites that share one s): the readers of a norm, or of one tensor."""
    groups: list[tuple[str | None, list[Site]]] = list(norm_groups(bench).items())
    seen = {site.name for _, group in groups for site in group}
    for site in bench.sites:
        if site.name not in seen:
            names = [name for name in bench.graph.sharing(site.name) if name not in seen]
            seen.update(names)
            groups.append((None, [bench.site(name) for name in names]))
    return groups


def smoothing_scale(peak: Tensor, group: list[Site], alpha: float) -> Tensor:
    """The scale s [C] from the activation maxima [C] and the weights of all readers."""
    if all(site.kind == "depthwise" for site in group):
        alpha = 1.0
    weight = torch.stack([input_weight_peak(site) for site in group]).amax(0).clamp(min=FLOOR)
    scale = (peak.pow(alpha) / weight.pow(1 - alpha)).clamp(min=FLOOR)
    return torch.where(peak > 0, scale, torch.ones_like(scale))


def input_weight_peak(site: Site) -> Tensor:
    """Largest |W| behind each input channel [C]; groups of a convolution have their own."""
    weight = (
        site.float_weight.abs().flatten(2)
        if site.float_weight.ndim > 2
        else site.float_weight.abs()[..., None]
    )
    groups = site.channels // weight.shape[1]
    per_group = weight.reshape(groups, -1, *weight.shape[1:])  # [G, O / G, C / G, taps]
    return per_group.amax((1, 3)).flatten()


def _input_scheme(site: Site, radius: Tensor, dynamic: bool) -> InputScheme:
    if site.act_bits is None:
        return FloatInput()
    if dynamic:
        return DynamicToken(site.act_bits, symmetric=True)
    return StaticUniform.spanning(-radius, radius, site.act_bits, symmetric=True)
