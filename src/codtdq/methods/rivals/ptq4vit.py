"""PTQ4ViT: scales by gradient-weighted output error, and twin grids behind GELU.

Source: Z. Yuan, C. Xue, Y. Chen, Q. Wu, G. Sun, "PTQ4ViT: Post-Training Quantization for Vision
Transformers with Twin Uniform Quantization", ECCV 2022 (arXiv 2111.12293), and its released code.

Symmetric grids q = clip(round(x / s), -2^(b-1), 2^(b-1)-1). A scale starts at s0 = max|.| /
(2^(b-1) - 0.5); candidates are s0 (alpha + i (beta - alpha) / n), i = 0..n-1. Three rounds: the
weight scale of least error with the input scale fixed, then the input scale. The error of an
operator with output O is sum_o (g_o (O_hat_o - O_o))^2, g = dLoss/dO. Inputs are those of the
float network. An input that comes out of GELU has twin grids: step s+ (searched, codes
0..2^(b-1)-1) for x >= 0 and the fixed step s- = 0.16997 / 2^(b-1) (codes -2^(b-1)..-1) for x < 0.

Deviations from the original:
- The released default takes g from KL(float || float), whose gradient is zero but for round-off.
  Here, as the paper means it, Loss = -log p(y) with a label y drawn per pixel from the float
  prediction (fixed seed), so that g^2 estimates the diagonal of the Fisher information.
  metric="mse" is g = 1. An operator that no gradient reaches (side outputs, saturated gates) takes
  g = 1, and the record lists it; a single output channel without gradient takes a small even g.
- The error is summed at `positions` random output positions per image, not at all of them.
- Only operators and their inputs are quantized: no softmax and no matrix products inside
  attention, hence no twin grid for softmax. Convolution inputs are quantized, too (the original
  leaves them float), the image with `first_layer`.
- The alignment s+ = 2^m s- is not enforced, as in the released code.

Weights (w_granularity): "released" has one scale per Linear (three for a fused qkv: an attention
operator with three times as many outputs as inputs) and one per output channel of a convolution;
"per_tensor" and "per_channel" do the same everywhere. A weight with a group size has a scale for
each group of each output instead, searched group after group in every round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError, ConfigError
from codtdq.methods.registry import FROM_CODE, register_method
from codtdq.methods.rivals.fisher import FISHER, MSE, OperatorSample, sample_operators
from codtdq.methods.rivals.receptive_fields import by_group, weight_matrix
from codtdq.methods.rivals.scale_search import (
    ColumnGroup,
    all_tie,
    column_groups,
    input_errors,
    weight_errors,
)
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, qmax_of, qmin_of
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.progress import track
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.stored import BITS, Stored, one_of, rules
from codtdq.schemes.weights import UniformWeight, group_rows

GELU_MINIMUM = 0.16997  # -min of x Phi(x)
SILENT_SHARE = 1e-3  # importance of an output without gradient, relative to the mean
GRANULARITIES = ("released", "per_tensor", "per_channel")


@dataclass(frozen=True, kw_only=True)
class PTQ4ViTConfig(QuantConfig):
    """Settings of PTQ4ViT."""

    fold_norms: bool = True  # as the common setting of this family has it
    metric: str = FISHER  # "fisher", or "mse" for g = 1
    w_granularity: str = "released"
    search_images: int = 32
    positions: int = 8  # sampled output positions per operator and image
    candidates: int = 100
    alpha: float = 0.01
    beta: float = 1.2
    rounds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in (FISHER, MSE):
            raise ConfigError(f"metric is {self.metric!r}; accepted: {FISHER}, {MSE}")
        if self.w_granularity not in GRANULARITIES:
            raise ConfigError(
                f"w_granularity is {self.w_granularity!r}; accepted: {', '.join(GRANULARITIES)}"
            )
        if not 0 < self.alpha < self.beta:
            raise ConfigError(
                f"alpha is {self.alpha} and beta {self.beta}; accepted: 0 < alpha < beta"
            )
        for name in ("search_images", "positions", "candidates", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; accepted: 1 or more")


class TwinInput(InputScheme):
    """Two half grids that meet at zero; the sign bit of the code says which one.

    positive, negative: steps [1] of x >= 0 and x < 0.
    """

    kind = "twin"
    accepts = rules(bits=BITS)
    positive: Tensor
    negative: Tensor

    def __init__(self, bits: int, *, positive: Tensor | None = None) -> None:
        super().__init__()
        self.code_bits = bits
        positive = torch.ones(1) if positive is None else positive.detach().float().reshape(1)
        self.register_buffer("positive", positive)
        self.register_buffer("negative", torch.full((1,), GELU_MINIMUM / 2 ** (bits - 1)))

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """A step on either side."""
        return dict.fromkeys(("positive", "negative"), one_of((1,), low=0))

    @property
    def step(self) -> Tensor:
        """The coarser half's step, which carries most of the range."""
        return self.positive

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize each value on the half grid of its sign."""
        zero = torch.zeros(())
        above = fake_shifted(tokens.clamp(min=0), self.positive, zero, 0, qmax_of(self.code_bits))
        return above + self.below(tokens)

    def below(self, x: Tensor) -> Tensor:
        """x_hat of the negative values, 0 elsewhere."""
        low = qmin_of(self.code_bits)
        return fake_shifted(x.clamp(max=0), self.negative, torch.zeros(()), low, 0)

    def bits(self, channels: int) -> float:
        """Both steps travel with the model."""
        return float(self.code_bits)

    def settings(self) -> dict[str, Any]:
        """The width."""
        return {"bits": self.code_bits}


class ScaleSearch:
    """The alternating search of one operator's scales on its sample.

    weight_step [S] and input_step [1] are the scales so far; None where a side stays float. With
    weight groups S = O G, in the order of `group_rows`.
    """

    def __init__(self, site: Site, sample: OperatorSample, config: PTQ4ViTConfig) -> None:
        self.site, self.config = site, config
        groups, weight_group = sample.fields.groups, site.weight_group
        self.x = sample.fields.matrix()  # [groups, R, K]
        self.weight = site.float_weight.float().flatten(1)  # [O, K]
        self.target = torch.bmm(self.x, weight_matrix(self.weight, groups))
        g = sample.gradients
        self.importance = None if g is None else by_group(importance_of(g), groups)
        # groups of columns that have scales of their own
        self.columns = 1 if weight_group is None else -(-self.weight.shape[1] // weight_group)
        self.twin = site.source.kind == "gelu"
        self.weight_start = self.input_start = self.weight_step = self.input_step = None
        if site.weight_bits is not None:
            blocks = group_rows(self.weight, weight_group).abs()
            if weight_group is None:
                blocks = blocks.reshape(count_scales(site, config.w_granularity), -1)
            self.weight_start = _start(blocks.amax(1), site.weight_bits)
            self.weight_step = self.weight_start
        if site.act_bits is not None:
            self.input_start = _start(sample.high if self.twin else sample.absmax, site.act_bits)
            self.input_step = self.input_start

    def run(self) -> None:
        """Rounds until nothing changes: a further round would then choose the same again."""
        for _ in range(self.config.rounds):
            before = (self.weight_step, self.input_step)
            if self.weight_start is not None:
                self.search_weight()
            if self.input_start is not None:
                errors = self.errors_of_input()[:, None]
                self.input_step = _choose(self.factors()[:, None] * self.input_start, errors)
            if _same(before[0], self.weight_step) and _same(before[1], self.input_step):
                return

    def factors(self) -> Tensor:
        """[n] candidates relative to the start."""
        c = self.config
        return c.alpha + torch.arange(c.candidates) * ((c.beta - c.alpha) / c.candidates)

    def parts(self) -> Iterator[ColumnGroup]:
        """Groups of weight columns; `w_hat` [O, K] is the weight on the grids so far."""
        store = self.weight_scheme()
        assert store is not None
        x_hat = self.x if self.input_step is None else self._quantized(self.input_step)[:, 0]
        self.w_hat = store.dequantize().flatten(1)
        return column_groups(x_hat, self.w_hat, self.target, self.site.weight_group)

    def search_weight(self) -> None:
        """Take the weight scales of least error, the input quantized as it is now."""
        assert self.weight_start is not None and self.weight_step is not None
        outputs = self.weight_start.shape[0] // self.columns
        start, steps = (s.view(outputs, -1) for s in (self.weight_start, self.weight_step.clone()))
        for part in self.parts():
            candidates = self.factors()[:, None] * start[:, part.index]
            errors = self.errors_of_weight(part)
            chosen = _choose(candidates, errors)
            if self.site.weight_group is not None:
                chosen = torch.where(all_tie(errors, 0), steps[:, part.index], chosen)
                self.w_hat[:, part.columns] = self._on_grid(part, chosen)
            steps[:, part.index] = chosen
        self.weight_step = steps.flatten()

    def errors_of_weight(self, part: ColumnGroup) -> Tensor:
        """[n, S / columns] error of every weight scale of a group of columns."""
        assert self.weight_start is not None and self.site.weight_bits is not None
        start = self.weight_start.view(-1, self.columns)[:, part.index]
        return weight_errors(
            part.x_hat,
            self.weight[:, part.columns],
            self.factors()[:, None] * start,
            self.site.weight_bits,
            part.target,
            self.importance,
        )

    def _on_grid(self, part: ColumnGroup, step: Tensor) -> Tensor:
        assert self.site.weight_bits is not None
        limits = code_limits(self.site.weight_bits, True)
        return fake_shifted(self.weight[:, part.columns], step[:, None], torch.zeros(()), *limits)

    def errors_of_input(self) -> Tensor:
        """[n] error of every input scale, the weight quantized as it is now."""
        assert self.input_start is not None
        store = self.weight_scheme()
        w_hat = self.weight if store is None else store.dequantize().flatten(1)
        matrix = weight_matrix(w_hat, self.x.shape[0])
        steps = self.factors() * self.input_start
        return input_errors(self._quantized, steps, matrix, self.target, self.importance)

    def weight_scheme(self) -> UniformWeight | None:
        """The weight on the grids so far."""
        if self.weight_step is None or self.site.weight_bits is None:
            return None
        step, group = self.weight_step[:, None], self.site.weight_group
        if group is None and len(step) > 1:
            step = step.repeat_interleave(len(self.weight) // len(step), 0)
        return UniformWeight.quantize(
            self.site.float_weight, self.site.weight_bits, step=step, symmetric=True, group=group
        )

    def quantizer(self) -> InputScheme | None:
        """The input's grid so far."""
        if self.input_step is None or self.site.act_bits is None:
            return None
        if self.twin:
            return TwinInput(self.site.act_bits, positive=self.input_step)
        return StaticUniform(self.site.act_bits, symmetric=True, step=self.input_step)

    def _quantized(self, steps: Tensor) -> Tensor:
        """x_hat [groups, P, R, K] for the steps [P]: s+ for twin grids."""
        assert self.site.act_bits is not None
        x, step = self.x.unsqueeze(1), steps.view(1, -1, 1, 1)
        if not self.twin:
            return fake_shifted(x, step, torch.zeros(()), *code_limits(self.site.act_bits, True))
        above = fake_shifted(x.clamp(min=0), step, torch.zeros(()), 0, qmax_of(self.site.act_bits))
        return above.add_(TwinInput(self.site.act_bits).below(x))


def importance_of(gradients: Tensor) -> Tensor:
    """g^2 [R, O]; an output without any gradient in the sample counts a little and evenly.

    Otherwise all candidates of its own weight scale would tie, and the smallest would be taken.
    """
    squared = gradients.square()
    silent = ~gradients.any(0)
    return torch.where(silent, SILENT_SHARE * squared.mean(), squared)


def count_scales(site: Site, granularity: str) -> int:
    """How many blocks of output channels have a weight scale of their own."""
    outputs = int(site.float_weight.shape[0])
    linear = isinstance(site.module, nn.Linear)
    if granularity == "per_channel" or (granularity == "released" and not linear):
        return outputs
    fused = granularity == "released" and site.role == "attention"
    return 3 if fused and outputs == 3 * site.channels else 1


def _start(extreme: Tensor, bits: int) -> Tensor:
    return (extreme.reshape(-1) / (2 ** (bits - 1) - 0.5)).clamp(min=EPS)


def _same(before: Tensor | None, after: Tensor | None) -> bool:
    return before is None or after is None or torch.equal(before, after)


def _choose(steps: Tensor, errors: Tensor) -> Tensor:
    """[S] the step of least error in each column of [n, S]."""
    return steps.gather(0, errors.argmin(0, keepdim=True))[0].clamp(min=EPS)


def search_scales(bench: Workbench) -> None:
    """Sample, search and install every operator."""
    config = bench.config
    assert isinstance(config, PTQ4ViTConfig)
    if not bench.quantizes:
        return
    samples = sample_operators(
        bench, metric=config.metric, images=config.search_images, positions=config.positions
    )
    silent = [name for name, sample in samples.items() if sample.silent]
    if config.metric == FISHER and len(silent) == len(samples):
        raise CalibrationError(
            "no operator has a gradient of the mask; declare mask_logits for the model or set "
            "metric='mse'"
        )
    bench.notes["metric"] = config.metric
    bench.notes["operators_without_gradient"] = silent if config.metric == FISHER else []
    for site in track(bench.sites, "searching scales", len(bench.sites)):
        search = ScaleSearch(site, samples.pop(site.name), config)
        search.run()
        bench.install(site, inputs=search.quantizer(), weight=search.weight_scheme())


_SOURCE = "Yuan et al., ECCV 2022"


@register_method(
    "ptq4vit-mse",
    config=PTQ4ViTConfig,
    settings={"metric": "mse"},
    title="PTQ4ViT (plain squared error)",
    source=_SOURCE,
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor, twin after GELU",
    calibration_images=32,
    weight_bits="4 (Linear), 4 + 32/K (conv)",
    description="PTQ4ViT without gradient weights: the control of its metric",
)
@register_method(
    "ptq4vit-per-channel",
    config=PTQ4ViTConfig,
    settings={"w_granularity": "per_channel"},
    title="PTQ4ViT (per-channel weights)",
    source=_SOURCE,
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor, twin after GELU",
    calibration_images=32,
    gradients=True,
    description="PTQ4ViT with one weight scale per output channel everywhere",
)
@register_method(
    "ptq4vit",
    config=PTQ4ViTConfig,
    title="PTQ4ViT",
    source=_SOURCE,
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor, twin after GELU",
    calibration_images=32,
    gradients=True,
    weight_bits="4 (Linear), 4 + 32/K (conv)",
    description="scales by Fisher-weighted output error; twin grids after GELU",
)
def ptq4vit(bench: Workbench) -> None:
    """Quantize a model with PTQ4ViT."""
    search_scales(bench)
