"""PTQ4SAM (Lv, Chen, Guo, Ding, Liu: PTQ4SAM: Post-Training Quantization for Segment Anything,
CVPR 2024), reduced to the inputs and weights of linear and convolutional operators.

Inputs: static, per tensor, asymmetric; s = (high - low) / (2^b - 1), z = round(-low / s) with the
    minimum and maximum of each image averaged over images; steps are learned, zero-points stay.
Weights: asymmetric per output channel (or group of its values), the least |W - W_hat|^2.4 over 100
    ranges x 16 zero-points; then learned rounding.
Reconstruction: see `reconstruction`. `ptq4sam` has it (the paper's L variant), `ptq4sam-s` has not.

Deviations from the original:
- A pooled vector, one value per channel and image, has the range of all images, not the average of
  their ranges, which would clip every other image. SAM has no such input.
- Its two own ideas act on operands of matrix products, which are float here: sign flips of the keys
  (BIG) and the adaptive-granularity logarithmic grid of the softmax (AGQ) are therefore absent.
  `flip_bimodal=True` applies the test and the flips of BIG to operator inputs instead: a channel
  whose mean is negative changes its sign where the pooled density has two peaks, and the weight
  undoes it. That transfer is this project's; it is off by default.
- Every operator is quantized, with 8 bits for the image; the original leaves the patch embedding
  and the heads float.
- The released code keeps dropping input quantization after learning; here nothing drops then.
- The fast budget takes 100 steps of 4 images with larger rates and searches weight grids from
  coarse to fine; the paper budget has the original's 20 000 steps of one image, on 128 images
  instead of 32.
- A block is kept only if its error fell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.methods.collect import InputStats, collect_inputs
from codtdq.methods.registry import FROM_CODE, register_method
from codtdq.methods.rivals.bimodal import SAMPLES, flip_columns, flips_of
from codtdq.methods.rivals.reconstruction import Reconstruction
from codtdq.methods.rivals.sam_grids import averaged_grid, searched_weight
from codtdq.methods.workbench import Workbench
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme, WeightScheme
from codtdq.schemes.inputs import Rescaled
from codtdq.schemes.weights import FloatWeight


@dataclass(frozen=True, kw_only=True)
class Ptq4SamConfig(QuantConfig):
    """Settings of PTQ4SAM."""

    reconstruct: bool = True
    flip_bimodal: bool = False  # BIG's sign flips on operator inputs


@register_method(
    "ptq4sam",
    config=Ptq4SamConfig,
    title="PTQ4SAM-L",
    source="Lv et al., CVPR 2024",
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor",
    gradients=True,
    reconstructs=True,
    weight_bits="4 + 40/K",
    description="averaged ranges, L2.4 weight grids, QDrop reconstruction, without matmul parts",
)
@register_method(
    "ptq4sam-s",
    config=Ptq4SamConfig,
    settings={"reconstruct": False},
    title="PTQ4SAM-S",
    source="Lv et al., CVPR 2024",
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor",
    weight_bits="4 + 40/K",
    description="averaged ranges and L2.4 weight grids without reconstruction",
)
def ptq4sam(bench: Workbench) -> None:
    """Install the starting grids, then reconstruct unless the variant does not."""
    config: Ptq4SamConfig = bench.config
    if not bench.quantizes:
        return
    engine = Reconstruction(bench) if config.reconstruct else None
    stats = collect_inputs(bench) if bench.quantizes_inputs else {}
    weights: dict[str, Tensor] = {}
    flipped = []
    for site in bench.sites:
        weights[site.name] = site.float_weight.float()
        inputs: InputScheme | None = None
        if site.act_bits is not None:
            seen = stats[site.name]
            signs = flips_of(seen.rows) if config.flip_bimodal else None
            if signs is None:
                inputs = averaged_grid(seen, site.act_bits)
            else:
                flipped.append(site.name)
                weights[site.name] = flip_columns(site.module, weights[site.name], signs)
                inputs = Rescaled(averaged_grid(_flip(seen, signs), site.act_bits), scale=signs)
        install_weight(bench, site, weights[site.name], inputs)
    if config.flip_bimodal:
        bench.notes["flipped"] = flipped
        bench.notes["density_values"] = SAMPLES
    if engine is not None:
        engine.run(weights=weights)


def install_weight(
    bench: Workbench, site: Site, weight: Tensor, inputs: InputScheme | None
) -> None:
    """Install an input quantizer and the weight on its searched grid (or as it is)."""
    store: WeightScheme = FloatWeight.of(weight)
    if site.weight_bits is not None:
        exhaustive = bench.budget in ("tenth", "paper")
        store = searched_weight(
            weight, site.weight_bits, exhaustive=exhaustive, group=site.weight_group
        )
    bench.install(site, inputs=inputs, weight=store)


def _flip(stats: InputStats, signs: Tensor) -> InputStats:
    """Statistics of x * signs."""
    negative = signs < 0

    def low_high(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(negative, -high, low), torch.where(negative, -low, high)

    low, high = low_high(stats.low, stats.high)
    image_low, image_high = low_high(stats.image_low, stats.image_high)
    return InputStats(low, high, image_low, image_high, stats.rows * signs)
