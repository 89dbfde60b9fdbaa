"""NoisyQuant: its theory, a search that never loses, and noise that stays what it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import codtdq
from codtdq.errors import ConfigError
from codtdq.methods import apply_method
from codtdq.methods.rivals.noisyquant import (
    NoiseSearch,
    NoiseSettings,
    NoisyInput,
    NoisyPTQ4ViTConfig,
    NoisyQuantConfig,
    clip_step,
)
from codtdq.methods.rivals.ptq4vit import TwinInput
from codtdq.methods.rivals.receptive_fields import fields_at
from codtdq.operators import quant_operators
from codtdq.operators.tokens import input_tokens, run_operator
from codtdq.schemes.inputs import FloatInput, StaticUniform
from small_nets import images, small_net

FEW = {"noise_images": 4, "noise_positions": 16}
FEW_SCALES = {**FEW, "search_images": 4, "positions": 32, "candidates": 40}
SETTINGS = NoiseSettings()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def snr(x: Tensor, x_hat: Tensor) -> float:
    return float(10 * torch.log10(x.square().sum() / (x - x_hat).square().sum()))


def test_an_identity_quantizer_makes_noise_disappear() -> None:
    x = torch.randn(2, 5, 7, generator=seeded())
    noisy = NoisyInput(FloatInput(), noise=torch.rand(7, generator=seeded(1)) * 2 - 1)
    assert torch.allclose(noisy(x), x, atol=1e-6)


def test_noise_is_added_before_the_quantizer_and_subtracted_after_it() -> None:
    inner = StaticUniform(4, symmetric=True, step=torch.tensor([1.0]))
    noisy = NoisyInput(inner, noise=torch.tensor([0.3, -0.3]))
    x = torch.tensor([[[0.4, 0.4], [1.0, 1.0]]])
    assert torch.allclose(noisy(x), torch.tensor([[[0.7, 0.3], [0.7, 1.3]]]))


@pytest.mark.parametrize(("x", "n"), [(0.05, 0.4), (0.2, 0.6), (0.4, 0.5), (0.0, 0.25), (0.3, 1.2)])
def test_expected_change_of_the_error_is_the_closed_form(x: float, n: float) -> None:
    """E[change] = n^2/3 - (b/n)(n-x)^2 for x <= n <= 2b - x, here with b = 1."""
    b = 1.0
    inner = StaticUniform(8, symmetric=True, step=torch.tensor([2 * b]))
    value = torch.full((1, 1, 400_000), 7 * b - x)  # x away from the middle of levels 6b and 8b
    noise = (torch.rand(400_000, generator=seeded()) * 2 - 1) * n
    change = (NoisyInput(inner, noise=noise)(value) - value).square() - (
        inner(value) - value
    ).square()
    assert float(change.mean()) == pytest.approx(n**2 / 3 - b / n * (n - x) ** 2, abs=4e-3)


def conv_problem(bits: int = 3) -> tuple[nn.Conv2d, Tensor, StaticUniform, NoiseSearch]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = nn.Conv2d(6, 4, 3, padding=1, groups=2).requires_grad_(False)
    x = torch.rand(2, 6, 5, 5, generator=seeded()) * 2 - 0.5
    fields = fields_at(conv, x, conv(x), torch.arange(2 * 25))
    step = clip_step(fields, x.abs().amax(), conv.weight, bits, 50)
    quantizer = StaticUniform(bits, symmetric=True, step=step)
    return conv, x, quantizer, NoiseSearch(fields, conv.weight, quantizer)


def true_error(conv: nn.Conv2d, x: Tensor, inputs: nn.Module) -> float:
    tokens = input_tokens(conv, x)
    return float((run_operator(conv, inputs(tokens), conv.weight, x) - conv(x)).square().sum())


def test_searched_errors_are_those_of_the_operator_padding_included() -> None:
    conv, x, quantizer, search = conv_problem()
    noises = (torch.rand(5, 6, generator=seeded(2)) - 0.3) * quantizer.step
    expected = [true_error(conv, x, NoisyInput(quantizer, noise=noise)) for noise in noises]
    assert search.errors(noises).tolist() == pytest.approx(expected, rel=1e-4)


def test_noise_is_never_worse_than_the_base_and_zero_is_kept_where_it_is_best() -> None:
    for seed in range(5):
        conv, x, quantizer, search = conv_problem()
        unit = torch.rand(6, generator=seeded(seed)) * 2 - 1
        noise = search.run(quantizer.step, SETTINGS, unit)
        found = true_error(conv, x, NoisyInput(quantizer, noise=noise))
        assert found <= true_error(conv, x, quantizer) * (1 + 1e-6)
    on_levels = NoiseSearch(search.fields, search.weight, quantizer)
    on_levels.fields.values = quantizer(search.fields.values)  # every value is a level already
    noise = on_levels.run(quantizer.step, SETTINGS, unit)
    assert float(on_levels.errors(noise[None])) == pytest.approx(0, abs=1e-8)


def test_noise_helps_where_values_sit_between_levels() -> None:
    """A peak just above a threshold: all errors have one sign without noise, and add up."""
    linear = nn.Linear(32, 1, bias=False).requires_grad_(False)
    linear.weight.fill_(1.0)
    x = 0.5 + 0.02 * torch.rand(64, 32, generator=seeded())
    quantizer = StaticUniform(4, symmetric=True, step=torch.tensor([1.0]))
    search = NoiseSearch(
        fields_at(linear, x, linear(x), torch.arange(64)), linear.weight, quantizer
    )
    noise = search.run(quantizer.step, SETTINGS, torch.rand(32, generator=seeded()) * 2 - 1)
    assert search.errors(noise[None]) < 0.05 * search.errors(torch.zeros(1, 32))


def test_clip_is_the_best_of_its_candidates() -> None:
    conv, x, quantizer, _ = conv_problem()
    steps = [float(x.abs().amax()) * i / 50 / 3 for i in range(1, 51)]
    errors = [
        true_error(conv, x, StaticUniform(3, symmetric=True, step=torch.tensor([s]))) for s in steps
    ]
    assert float(quantizer.step) == pytest.approx(steps[errors.index(min(errors))], rel=1e-5)


@pytest.mark.parametrize("method", ["noisyquant", "noisyquant-ptq4vit"])
def test_noise_is_fixed_by_the_seed_and_survives_a_file(method: str, tmp_path) -> None:
    changes = FEW if method == "noisyquant" else FEW_SCALES
    first, second, other = (
        apply_method(small_net(), method, [images(4)], seed=seed, changes=changes)
        for seed in (0, 0, 1)
    )
    noises = [
        torch.cat([s.input_scheme.noise for s in quant_operators(m).values()])
        for m in (first, second, other)
    ]
    assert torch.equal(noises[0], noises[1]) and not torch.equal(noises[0], noises[2])
    assert first.quant_record.notes["operators_with_noise"] > 0
    x = images(2, 3)
    assert torch.equal(first(x), first(x)) and torch.equal(first(x), second(x))
    codtdq.save(first, tmp_path / "q")
    again = codtdq.load(tmp_path / "q", model=small_net(seed=5))
    assert torch.equal(again(x), first(x))


def test_every_quantized_input_gets_noise_within_its_limits() -> None:
    model = apply_method(small_net(), "noisyquant", [images(4)], changes=FEW)
    for sim in quant_operators(model).values():
        noisy = sim.input_scheme
        assert isinstance(noisy, NoisyInput) and noisy.noise.shape == (sim.channels,)
        spread = noisy.noise.amax() - noisy.noise.amin()
        assert float(spread) <= 2 * float(noisy.inner.step) * (1 + 1e-5)
        assert sim.weight_scheme.step.shape == (sim.weight.shape[0], 1)


def test_ptq4vit_stays_underneath() -> None:
    base = apply_method(
        small_net(),
        "ptq4vit",
        [images(4)],
        changes={k: v for k, v in FEW_SCALES.items() if k not in FEW},
    )
    model = apply_method(small_net(), "noisyquant-ptq4vit", [images(4)], changes=FEW_SCALES)
    below = quant_operators(base)
    for name, sim in quant_operators(model).items():
        assert torch.equal(sim.weight, below[name].weight)
        assert torch.equal(sim.input_scheme.inner.step, below[name].input_scheme.step)
    assert isinstance(model.mlp.fc2.input_scheme.inner, TwinInput)


class Twice(nn.Module):
    """One operator at two scales, the second fifty times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return (self.shared(y) + self.shared(50 * y)).mean(1, keepdim=True)


def test_an_operator_that_runs_twice_is_set_up_from_both_calls() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Twice().eval()
    done = apply_method(model, "noisyquant", [images(4)], changes=FEW)
    with torch.no_grad():
        largest = float(50 * model.stem(images(4)).abs().max())
    assert float(done.shared.input_scheme.inner.step) * 7 > largest / 4


def test_float_widths_leave_the_network_alone() -> None:
    off = {"act_bits": None, "weight_bits": None}
    for method in ("noisyquant", "noisyquant-ptq4vit"):
        model = apply_method(small_net(), method, [images(2)], changes=off)
        assert torch.equal(model(images(3, 1)), small_net()(images(3, 1)))


@pytest.mark.parametrize("method", ["noisyquant", "noisyquant-ptq4vit"])
def test_eight_bits_are_close_to_float_and_batches_do_not_mix(method: str) -> None:
    changes = {**(FEW if method == "noisyquant" else FEW_SCALES), "act_bits": 8, "weight_bits": 8}
    with torch.no_grad():
        model = apply_method(small_net(), method, [images(4)], changes=changes)
        x = images(4)
        assert snr(small_net()(x), model(x)) > 25
        assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


def test_grids_without_zero_are_refused() -> None:
    for config in (NoisyQuantConfig, NoisyPTQ4ViTConfig):
        with pytest.raises(ConfigError, match="odd number"):
            config(shift_points=40)
        with pytest.raises(ConfigError, match="amplitude_span"):
            config(amplitude_span=1.5)
    with pytest.raises(ConfigError, match="metric"):  # the base's own checks still run
        NoisyPTQ4ViTConfig(metric="kl")
    with pytest.raises(ConfigError, match="act_bits"):
        NoisyQuantConfig(act_bits=99)
