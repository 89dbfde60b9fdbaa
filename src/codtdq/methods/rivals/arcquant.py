"""ARCQuant: NVFP4 with residual channels, and plain NVFP4 beside it as its control.

Source: Meng et al., "ARCQuant: Boosting NVFP4 Quantization with Augmented Residual Channels for
LLMs", arXiv 2601.07475, ACL 2026, and its released code.

With Q the NVFP4 rounding (`codtdq.numerics.nvfp4`) and X_o the S channels of largest magnitude,
    y = Q(X) Q(W)^T + Q(X_o - Q(X_o)) Q(W_o)^T,
one product of [Q(X) | Q(R)] and [Q(W) | Q(W_o)]. Channels are ordered by their largest calibration
magnitude, outliers last, and S = ceil16(C * mean(|x| > max|row| / 8)). Since outliers fill whole
blocks at the end of the order, Q(W_o) are the very columns of Q(W), and the sum is the product of
x_hat = Q(X) + [0 | Q(R)] with Q(W): that is what runs here.

Deviations: S is rounded to 16 channels, not 64, and is at most C/2 (vision layers are narrow), so
that it is 0 below 32 channels. Magnitudes are used throughout where the code takes signed maxima.
The float32 tensor scale belongs to one image, not to a batch, and covers Q(X) and Q(R).
Convolutions: the channels of a pixel are a token, weights have their blocks along the channels of
each tap. Group sizes that are set replace the blocks of 16 of their side (S then is in whole blocks
of activations); where the weight's blocks are others, Q(W_o) still are the columns of Q(W). A
grouped convolution keeps the weight's own channel order, and its residual is a second
convolution with the same kernel. Scope: every Linear and Conv. FP4 has one width: at other widths
activations are symmetric integers in blocks with a float32 scale and no residual, weights symmetric
integers per output channel or group; the operator that reads the image has the static 8-bit grid
per tensor.

`nvfp4`: the same without order and residual (round to nearest).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from codtdq.methods.collect import InputStats, collect_inputs
from codtdq.methods.registry import FROM_CODE, OWN, register_method
from codtdq.methods.rivals.fp4_operators import BlockInteger, Fp4Input, Fp4Weight
from codtdq.methods.workbench import Workbench
from codtdq.numerics.nvfp4 import BLOCK, CODE_BITS
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme, WeightScheme
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.weights import UniformWeight

IMAGE_RANGE_IMAGES = 16  # calibration images of plain NVFP4: only the image's own range needs them


@dataclass(frozen=True, kw_only=True)
class Nvfp4Config(QuantConfig):
    """Settings of the plain format."""

    act_group_size: int = BLOCK  # channels of a token that share a scale

    act_groups: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ArcQuantConfig(Nvfp4Config):
    """Settings of ARCQuant."""

    threshold: float = 0.125  # of a row's largest magnitude: larger entries count as outliers
    max_share: float = 0.5  # of the channels that may get a residual


@register_method(
    "arcquant",
    config=ArcQuantConfig,
    title="ARCQuant",
    source="Meng et al., arXiv 2601.07475, ACL 2026",
    evidence=FROM_CODE,
    ranges="dynamic",
    granularity="token x 16 channels",
    act_bits="4.5 (C + S)/C, S <= C/2",
    weight_bits="4.5 + 32/n + 16/O",
    description="NVFP4, and the residual of the largest channels in NVFP4 again",
)
def arcquant(bench: Workbench) -> None:
    """One calibration pass for the order and S, then both sides of every operator."""
    config: ArcQuantConfig = bench.config
    seen = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, seen) if seen else {}
    shares: dict[str, float] = {}
    for site in bench.sites:
        order: Tensor | None = None
        inputs: InputScheme | None = None
        if site.act_bits == CODE_BITS:
            order = channel_order(stats[site.name].absmax)
            residual = residual_channels(
                stats[site.name].rows, config.threshold, config.max_share, site.act_group
            )
            shares[site.name] = round(residual / site.channels, 4)
            inputs = Fp4Input(residual, site.act_group, order=order)
        elif site.act_bits is not None:
            inputs = _integer_input(site, site.act_bits, stats)
        bench.install(site, inputs=inputs, weight=_weight(site, order))
    bench.notes["residual_share"] = shares


@register_method(
    "nvfp4",
    config=Nvfp4Config,
    title="NVFP4 (round to nearest)",
    source="NVIDIA Blackwell format",
    evidence=OWN,
    ranges="dynamic",
    granularity="token x 16 channels",
    calibration_images=IMAGE_RANGE_IMAGES,
    act_bits="4.5",
    weight_bits="4.5 + 32/n",
    description="E2M1 values, an E4M3 scale for each block of 16, one float32 per tensor",
)
def nvfp4(bench: Workbench) -> None:
    """Both sides of every operator; images are run only for the range of the image itself."""
    static = [s for s in bench.sites if _is_static(s)]
    stats = collect_inputs(bench, static, images=IMAGE_RANGE_IMAGES) if static else {}
    for site in bench.sites:
        inputs: InputScheme | None = None
        if site.act_bits == CODE_BITS:
            inputs = Fp4Input(block=site.act_group)
        elif site.act_bits is not None:
            inputs = _integer_input(site, site.act_bits, stats)
        bench.install(site, inputs=inputs, weight=_weight(site, None))


def channel_order(absmax: Tensor) -> Tensor:
    """Channels [C] by rising magnitude: outliers last."""
    return torch.argsort(absmax, stable=True)


def residual_channels(rows: Tensor, threshold: float, max_share: float, block: int = BLOCK) -> int:
    """S of token rows [R, C]: the share of entries above threshold * max|row|, in whole blocks."""
    channels = rows.shape[1]
    size = rows.abs()
    share = float((size > threshold * size.amax(1, keepdim=True)).float().mean())
    wanted = -int(-channels * share // block) * block
    return min(wanted, int(channels * max_share) // block * block)


def _is_static(site: Site) -> bool:
    return site.role == "first" and site.act_bits not in (None, CODE_BITS)


def _integer_input(site: Site, bits: int, stats: dict[str, InputStats]) -> InputScheme:
    if not _is_static(site):
        return BlockInteger(bits, site.act_group)
    seen = stats[site.name]
    return StaticUniform.spanning(seen.low.amin(), seen.high.amax(), bits)


def _weight(site: Site, order: Tensor | None) -> WeightScheme | None:
    if site.weight_bits is None:
        return None
    if site.weight_bits != CODE_BITS:
        return UniformWeight.minmax(site.float_weight, site.weight_bits, group=site.weight_group)
    grouped = site.float_weight.shape[1] != site.channels
    return Fp4Weight.quantize(
        site.float_weight, None if grouped else order, group=site.weight_group
    )
