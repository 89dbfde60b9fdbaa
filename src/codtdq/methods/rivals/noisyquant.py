"""NoisyQuant: a fixed noise is added to an input before its quantizer and taken away after it.

Source: Y. Liu, H. Yang, Z. Dong, K. Keutzer, L. Du, S. Zhang, "NoisyQuant: Noisy Bias-Enhanced
Post-Training Activation Quantization for Vision Transformers", CVPR 2023 (arXiv 2211.16056), and
its released code.

Y = W_hat Q(X + N) + (B - W_hat N) with one N[c] per input channel, shared by all positions and
drawn once: N = m + a nu, nu ~ U(-1, 1) per channel. For a value at distance x from the middle
between two levels, a step of 2b and noise U(-n, n) with x <= n <= 2b - x, the expected change of
the squared error is n^2/3 - (b/n) (n - x)^2: values near a rounding threshold gain, so N is
searched for every operator by ||W_hat (Q(X + N) - N) - W_hat X||^2: first the shift m in
+-`shift_span` steps, then, with m fixed, the amplitude a in 0..`amplitude_span` steps. Both grids
contain 0: the base is never left for worse.

`noisyquant` stands on symmetric per-tensor inputs whose clipping is searched by output error, and
on symmetric min-max weights per output channel; `noisyquant-ptq4vit` on PTQ4ViT. As in the
released code, operators are set one after another in the running order inside a quantized forward
pass: one pass for all clippings, a second one for all noises.

Deviations from the original:
- Convolutions take part (the released code changes Linear only, the head excepted). N is
  subtracted right behind the quantizer, not in the bias: the same for Linear, and exact where
  zeros are padded.
- nu is uniform as in the paper; the released code draws a shifted Gaussian.
- Amplitudes end at one step, where the theory ends (released: two); grids are coarser; the error
  is summed at random output positions of `noise_images` images.
- The error is measured against W_hat X, not against the clipped input, and on PTQ4ViT by g = 1,
  too.
- An operator that runs several times per image is set up before the pass, from all of its calls.
- One draw of nu per operator; seeds of the benchmark vary it.
- On twin grids N is counted in the step of the positive half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.methods.collect import initialise_in_order, observe
from codtdq.methods.registry import FROM_CODE, register_method
from codtdq.methods.rivals.ptq4vit import PTQ4ViTConfig, TwinInput, search_scales
from codtdq.methods.rivals.receptive_fields import (
    Fields,
    fields_at,
    sample_positions,
    weight_matrix,
)
from codtdq.methods.rivals.scale_search import input_errors
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, qmax_of
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme, build_input_scheme
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.stored import Stored, nested, one_of, rules
from codtdq.schemes.weights import UniformWeight


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """How the noise is searched."""

    noise_images: int = 32
    noise_positions: int = 8  # sampled output positions per operator and image
    shift_span: float = 1.0  # largest |m| in steps
    shift_points: int = 41  # odd, so that 0 is one of them
    amplitude_span: float = 1.0  # largest a in steps
    amplitude_points: int = 51  # the first one is 0

    def check_noise(self) -> None:
        """Reject grids without a zero, or without points."""
        if self.shift_points % 2 != 1 or self.shift_points < 1:
            raise ConfigError(
                f"shift_points is {self.shift_points}; accepted: an odd number, so that 0 is tried"
            )
        if self.amplitude_points < 1 or not 0 <= self.amplitude_span <= 1:
            raise ConfigError(
                f"amplitude_points is {self.amplitude_points} and amplitude_span "
                f"{self.amplitude_span}; accepted: 1 or more, and 0 to 1 steps"
            )
        if self.noise_images < 1 or self.noise_positions < 1 or self.shift_span < 0:
            raise ConfigError("noise_images and noise_positions must be >= 1, shift_span >= 0")


@dataclass(frozen=True, kw_only=True)
class NoisyQuantConfig(NoiseSettings, QuantConfig):
    """Settings of NoisyQuant on clip-searched inputs."""

    fold_norms: bool = True  # as the common setting of this family has it
    clip_points: int = 100  # clipping candidates absmax * i / clip_points

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_noise()
        if self.clip_points < 1:
            raise ConfigError(f"clip_points is {self.clip_points}; accepted: 1 or more")


@dataclass(frozen=True, kw_only=True)
class NoisyPTQ4ViTConfig(NoiseSettings, PTQ4ViTConfig):
    """Settings of NoisyQuant on PTQ4ViT."""

    shift_span: float = 1.5
    shift_points: int = 61

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_noise()


class NoisyInput(InputScheme):
    """Another scheme on x + N, N taken away again. noise: [C]."""

    kind = "noisy"
    accepts = rules(inner=nested)
    noise: Tensor

    def __init__(self, inner: InputScheme | dict[str, Any], *, noise: Tensor | None = None) -> None:
        super().__init__()
        self.inner = build_input_scheme(inner) if isinstance(inner, dict) else inner
        self.register_buffer("noise", torch.zeros(1) if noise is None else noise.detach().float())

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """The noise of each channel."""
        return {"noise": one_of((1,), (channels,))}

    def forward(self, tokens: Tensor) -> Tensor:
        """Q(x + N) - N."""
        return self.inner(tokens + self.noise) - self.noise

    def bits(self, channels: int) -> float:
        """As the inner scheme: N is a constant of the model, its effect a bias."""
        return self.inner.bits(channels)

    def settings(self) -> dict[str, Any]:
        """The inner scheme."""
        return {"inner": self.inner.record()}


def clip_step(fields: Fields, absmax: Tensor, weight: Tensor, bits: int, points: int) -> Tensor:
    """[1] the step absmax * i / points / q_max, i = 1..points, of least output error."""
    factors = torch.arange(1, points + 1) / points
    steps = (absmax * factors / qmax_of(bits)).clamp(min=EPS)
    x, matrix = fields.matrix(), weight_matrix(weight.float(), fields.groups)
    limits = code_limits(bits, symmetric=True)

    def make(part: Tensor) -> Tensor:
        return fake_shifted(x.unsqueeze(1), part.view(1, -1, 1, 1), torch.zeros(()), *limits)

    errors = input_errors(make, steps, matrix, torch.bmm(x, matrix), None)
    return steps[errors.argmin()].reshape(1)


@dataclass
class NoiseSearch:
    """The search of one operator's N on its sample."""

    fields: Fields
    weight: Tensor  # W_hat
    quantizer: InputScheme

    def errors(self, noises: Tensor) -> Tensor:
        """[P] ||W_hat (Q(X + N) - N) - W_hat X||^2 of the noises [P, C]."""
        x, matrix = self.fields.matrix(), weight_matrix(self.weight.float(), self.fields.groups)

        def make(part: Tensor) -> Tensor:
            return torch.stack([self.fields.matrix(self._noisy(noise)) for noise in part], 1)

        return input_errors(make, noises, matrix, torch.bmm(x, matrix), None)

    def run(self, step: Tensor, settings: NoiseSettings, unit: Tensor) -> Tensor:
        """N [C]: the best shift, then the best amplitude of the unit noise [C] on top of it."""
        half = settings.shift_points // 2
        span = settings.shift_span / max(half, 1)
        shifts = (torch.arange(-half, half + 1) * span * step)[:, None].expand(-1, len(unit))
        noise = self._best(shifts)
        points = settings.amplitude_points
        grid = torch.arange(points) * (settings.amplitude_span / max(points - 1, 1))
        return self._best(noise + (grid * step)[:, None] * unit)

    def _best(self, noises: Tensor) -> Tensor:
        return noises[self.errors(noises).argmin()]

    def _noisy(self, noise: Tensor) -> Tensor:
        """Q(X + N) - N of the gathered inputs [R, C, k]; padded zeros stay zeros."""
        tokens = self.fields.values.transpose(1, 2)  # [R, k, C]: channels last, as tokens are
        noisy = self.quantizer(tokens + noise) - noise
        return noisy.transpose(1, 2) * self.fields.inside


def in_order(
    bench: Workbench, settings: NoiseSettings, start: Callable[[Site, Fields, Tensor], None]
) -> None:
    """Call `start(site, fields, absmax)` for every operator with a quantized input, in the running
    order inside one forward pass; for those that run several times before it, from all calls.
    """
    sites = [site for site in bench.sites if site.act_bits is not None]
    repeated = [site for site in sites if bench.graph.calls[site.name] > 1]
    generator = bench.generator("positions")
    images, per_image = settings.noise_images, settings.noise_positions
    seen: dict[str, list[tuple[Fields, Tensor]]] = {site.name: [] for site in repeated}

    def see(site: Site, x: Tensor, y: Tensor) -> None:
        picked = sample_positions(site.module, x, y, per_image, images, generator)
        seen[site.name].append((fields_at(site.module, x, y, picked), x.abs().amax()))

    if repeated:
        observe(bench, repeated, see, images=images)
        for site in repeated:
            fields, extremes = zip(*seen.pop(site.name))
            start(site, Fields.join(fields), torch.stack(extremes).amax())

    def first(site: Site, x: Tensor) -> None:
        y = site.module.forward(x)  # without hooks: this runs inside one
        picked = sample_positions(site.module, x, y, per_image, images, generator)
        start(site, fields_at(site.module, x, y, picked), x.abs().amax())

    once = [site for site in sites if bench.graph.calls[site.name] == 1]
    initialise_in_order(bench, once, first, bench.joint_batch(images))


def add_noise(bench: Workbench, settings: NoiseSettings) -> None:
    """Search and install N for every operator whose input is quantized."""
    shifted = noisy = 0

    def start(site: Site, fields: Fields, absmax: Tensor) -> None:
        nonlocal shifted, noisy
        quantizer = site.module.input_scheme
        assert isinstance(quantizer, StaticUniform | TwinInput)
        unit = torch.rand(site.channels, generator=bench.generator("noise", site.name)) * 2 - 1
        noise = NoiseSearch(fields, site.float_weight, quantizer).run(
            quantizer.step, settings, unit
        )
        shifted += bool(noise.any())
        noisy += bool((noise != noise[0]).any())
        bench.install(site, inputs=NoisyInput(quantizer, noise=noise))

    in_order(bench, settings, start)
    bench.notes["operators_with_shift_or_noise"] = shifted
    bench.notes["operators_with_noise"] = noisy


@register_method(
    "noisyquant",
    config=NoisyQuantConfig,
    title="NoisyQuant",
    source="Liu et al., CVPR 2023",
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor",
    calibration_images=32,
    description="searched clipping, then a fixed noise around the input quantizer",
)
def noisyquant(bench: Workbench) -> None:
    """Quantize a model with NoisyQuant on clip-searched symmetric inputs."""
    config = bench.config
    assert isinstance(config, NoisyQuantConfig)
    for site in bench.sites:
        if site.weight_bits is not None:
            bench.install(
                site,
                weight=UniformWeight.minmax(
                    site.float_weight, site.weight_bits, group=site.weight_group
                ),
            )

    def clip(site: Site, fields: Fields, absmax: Tensor) -> None:
        assert site.act_bits is not None
        step = clip_step(fields, absmax, site.float_weight, site.act_bits, config.clip_points)
        bench.install(site, inputs=StaticUniform(site.act_bits, symmetric=True, step=step))

    if bench.quantizes_inputs:
        in_order(bench, config, clip)
        add_noise(bench, config)


@register_method(
    "noisyquant-ptq4vit",
    config=NoisyPTQ4ViTConfig,
    title="NoisyQuant on PTQ4ViT",
    source="Liu et al., CVPR 2023",
    evidence=FROM_CODE,
    ranges="static",
    granularity="per tensor, twin after GELU",
    calibration_images=32,
    gradients=True,
    weight_bits="4 (Linear), 4 + 32/K (conv)",
    description="PTQ4ViT, then a fixed noise around the input quantizers",
)
def noisyquant_on_ptq4vit(bench: Workbench) -> None:
    """Quantize a model with PTQ4ViT and add NoisyQuant's noise."""
    config = bench.config
    assert isinstance(config, NoisyPTQ4ViTConfig)
    search_scales(bench)
    if bench.quantizes_inputs:
        add_noise(bench, config)
