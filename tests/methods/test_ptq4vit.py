"""PTQ4ViT: twin grids, Fisher gradients, and searches that equal brute force."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import codtdq
from codtdq.data import open_dataset
from codtdq.errors import CalibrationError, ConfigError
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.methods import apply_method
from codtdq.methods.likelihood import sampled_label_loss
from codtdq.methods.rivals.fisher import FISHER, MSE, sample_operators
from codtdq.methods.rivals.ptq4vit import (
    GELU_MINIMUM,
    PTQ4ViTConfig,
    ScaleSearch,
    TwinInput,
    count_scales,
)
from codtdq.methods.workbench import Site, Workbench
from codtdq.operators import quant_operators
from codtdq.operators.tokens import input_tokens, run_operator
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.weights import UniformWeight
from small_nets import images, small_net

ALL = 10_000  # more positions than any operator here has
FEW = {"search_images": 4, "positions": 32, "candidates": 40}


def bench_of(model: nn.Module, batch: Tensor, **changes: object) -> Workbench:
    config = PTQ4ViTConfig(**{"positions": ALL, "candidates": 20, **changes})  # type: ignore[arg-type]
    return Workbench(model.eval().requires_grad_(False), config, [batch])


def snr(x: Tensor, x_hat: Tensor) -> float:
    return float(10 * torch.log10(x.square().sum() / (x - x_hat).square().sum()))


@pytest.mark.parametrize("bits", [4, 8])
def test_twin_grid_has_half_of_its_levels_below_zero(bits: int) -> None:
    twin = TwinInput(bits, positive=torch.tensor([0.5 if bits == 4 else 0.05]))
    below = torch.linspace(-GELU_MINIMUM, -1e-6, 20_001).reshape(1, -1, 1)
    above = torch.linspace(0, 10, 20_001).reshape(1, -1, 1)
    half = 2 ** (bits - 1)
    levels = twin(below).unique()
    assert len(levels[levels < 0]) == half
    assert len(twin(above).unique()) == half
    assert (twin(below) - below).abs().max() <= GELU_MINIMUM / half / 2 + 1e-6
    assert twin(torch.zeros(1, 1, 1)) == 0  # so that padding stays exact


def test_twin_grid_beats_a_symmetric_one_behind_gelu() -> None:
    x = F.gelu(torch.randn(1, 50_000, 1, generator=torch.Generator().manual_seed(0)))
    step = x.max().reshape(1) / 7.5
    symmetric = StaticUniform(4, symmetric=True, step=step)
    assert snr(x, TwinInput(4, positive=step)(x)) > snr(x, symmetric(x)) + 0.3
    low = x[x < 0].reshape(1, -1, 1)
    assert snr(low, TwinInput(4, positive=step)(low)) > snr(low, symmetric(low)) + 10


def test_only_the_positive_step_is_searched() -> None:
    model = apply_method(small_net(), "ptq4vit", [images(4)], changes=FEW)
    found = {n: s.input_scheme for n, s in quant_operators(model).items()}
    twins = {name: q for name, q in found.items() if isinstance(q, TwinInput)}
    assert list(twins) == ["mlp.fc2"]  # the only operator behind GELU
    assert float(twins["mlp.fc2"].negative) == pytest.approx(GELU_MINIMUM / 8)
    assert float(twins["mlp.fc2"].positive) != 1.0


def test_fisher_gradients_are_those_of_sampled_labels_and_not_zero() -> None:
    samples = sample_operators(
        bench_of(small_net(), images(2)), metric=FISHER, images=2, positions=ALL
    )
    assert len(samples) == 8
    for sample in samples.values():
        assert sample.gradients is not None and float(sample.gradients.abs().max()) > 0
    # the head gives the logits, whose gradient is sigmoid(logit) - y with y in {0, 1}
    bench = bench_of(small_net(), images(2))
    head = sample_operators(bench, metric=FISHER, images=2, positions=ALL)["head"]
    site = bench.site("head")
    logits = head.fields.matrix()[0] @ site.float_weight.flatten(1).T + site.module.bias
    labels = logits.sigmoid() - head.gradients
    assert torch.allclose(labels, labels.round(), atol=1e-5)
    assert set(labels.round().abs().flatten().tolist()) == {0.0, 1.0}


def test_labels_and_positions_are_the_same_in_every_run() -> None:
    first, second = (
        sample_operators(bench_of(small_net(), images(2)), metric=FISHER, images=2, positions=5)
        for _ in range(2)
    )
    for name in first:
        assert torch.equal(first[name].gradients, second[name].gradients)
        assert torch.equal(first[name].fields.values, second[name].fields.values)


def first_errors(search: ScaleSearch) -> Tensor:
    """[n, S] of the scales of whole outputs."""
    return search.errors_of_weight(next(search.parts()))


def test_outputs_without_gradient_do_not_take_the_smallest_scale() -> None:
    bench = bench_of(small_net(), images(2))
    sample = sample_operators(bench, metric=FISHER, images=2, positions=ALL)["depthwise"]
    silent = sample.gradients.clone()
    silent[:, 3] = 0
    searches = [
        ScaleSearch(bench.site("depthwise"), dataclasses.replace(sample, gradients=g), bench.config)
        for g in (sample.gradients, silent, torch.ones_like(silent))
    ]
    whole, without, even = (first_errors(search).argmin(0) for search in searches)
    assert without[3] == even[3] > 0  # by plain squared error
    others = torch.arange(48) != 3
    assert torch.equal(without[others], whole[others])


class Changed(nn.Module):
    """In-place functions behind operators, an operator without effect, two classes and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.aside = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.a(x), inplace=True)
        return {"mask": self.b(x), "other": self.aside(x)}


def test_operators_without_gradient_are_searched_by_mse_and_listed() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Changed()
    done = apply_method(model, "ptq4vit", [images(2)], changes=FEW)
    assert done.quant_record.notes["operators_without_gradient"] == ["aside"]
    plain = apply_method(model, "ptq4vit", [images(2)], changes={**FEW, "metric": MSE})
    assert torch.equal(done.aside.weight, plain.aside.weight)
    assert done(images(2))["mask"].isfinite().all()


class Detached(Changed):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {k: v.detach() for k, v in super().forward(x).items()}


def test_a_mask_without_gradient_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="metric='mse'"):
        apply_method(Detached(), "ptq4vit", [images(2)], changes=FEW)


def brute_force(site: Site, search: ScaleSearch, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Errors by running the operator itself once per candidate: weights [n, O] and inputs [n]."""
    module, tokens = site.module, input_tokens(site.module, x)
    reference = run_operator(module, tokens, site.float_weight, x)
    channel = -1 if site.kind == "linear" else 1
    of_weight, of_input = [], []
    x_hat = search.quantizer()(tokens)
    w_now = search.weight_scheme().dequantize()
    for factor in search.factors():
        step = (factor * search.weight_start).repeat_interleave(
            site.float_weight.shape[0] // len(search.weight_start)
        )
        w_hat = UniformWeight.quantize(site.float_weight, 4, step=step[:, None], symmetric=True)
        error = (g * (run_operator(module, x_hat, w_hat.dequantize(), x) - reference)).square()
        of_weight.append(error.movedim(channel, 0).flatten(1).sum(1))
        moved = search.quantizer()
        start = factor * search.input_start
        if isinstance(moved, TwinInput):
            moved.positive = start
        else:
            moved.step = start
        of_input.append(
            (g * (run_operator(module, moved(tokens), w_now, x) - reference)).square().sum()
        )
    return torch.stack(of_weight), torch.stack(of_input)


@pytest.mark.parametrize("name", ["depthwise", "mlp.fc2", "mix", "attn.qkv", "head", "strided"])
def test_search_equals_running_every_candidate(name: str) -> None:
    model: nn.Module = small_net()
    if name == "strided":  # grouped, dilated, strided, with zeros around
        with torch.random.fork_rng():
            torch.manual_seed(1)
            grouped = nn.Conv2d(12, 8, 3, stride=2, padding=2, dilation=2, groups=4, bias=False)
            model = nn.Sequential(nn.Conv2d(3, 12, 1), grouped, nn.Conv2d(8, 1, 1))
        name = "1"
    bench = bench_of(model, images(2))
    site = bench.site(name)
    assert site.act_bits == site.weight_bits == 4
    seen: dict[str, Tensor] = {}
    handle = site.module.register_forward_hook(lambda m, a, y: seen.update(x=a[0], y=y))
    with torch.no_grad():
        model(images(2))
    handle.remove()
    sample = sample_operators(bench, metric=MSE, images=2, positions=ALL)[name]
    # importance that is the same at all positions survives the shuffled sampling
    outputs = site.float_weight.shape[0]
    g = torch.linspace(0.5, 2, outputs)
    sample = dataclasses.replace(sample, gradients=g.expand(len(sample.fields.values), -1))
    search = ScaleSearch(site, sample, bench.config)
    shape = [1] * seen["y"].ndim
    shape[-1 if site.kind == "linear" else 1] = outputs
    by_weight, by_input = brute_force(site, search, seen["x"], g.reshape(shape))
    scales = len(search.weight_start)
    by_weight = by_weight.reshape(len(by_weight), scales, -1).sum(2)
    assert torch.allclose(first_errors(search), by_weight, rtol=1e-3, atol=1e-5)
    assert torch.allclose(search.errors_of_input(), by_input, rtol=1e-3, atol=1e-5)
    expected = search.factors()[by_weight.argmin(0)] * search.weight_start
    search.config = dataclasses.replace(search.config, rounds=1)
    search.run()
    assert torch.allclose(search.weight_step, expected)  # the first thing a round chooses
    _, by_input = brute_force(site, search, seen["x"], g.reshape(shape))
    assert torch.allclose(
        search.input_step, search.factors()[by_input.argmin()] * search.input_start
    )


def test_importance_follows_the_sampled_positions() -> None:
    """With g of each position, the sampled error is the error of running the operator."""
    bench = bench_of(small_net(), images(2))
    samples = sample_operators(bench, metric=FISHER, images=2, positions=ALL)
    site, kept = bench.site("depthwise"), {}

    def keep(module: nn.Module, args: tuple[Tensor], y: Tensor) -> Tensor:
        kept["x"], kept["y"] = args[0].detach(), y.detach().requires_grad_()
        return kept["y"]

    handle = site.module.register_forward_hook(keep)
    sampled_label_loss(bench.model(images(2)), bench.generator("labels")).backward()
    handle.remove()
    search = ScaleSearch(site, samples["depthwise"], bench.config)
    by_weight, _ = brute_force(site, search, kept["x"], kept["y"].grad)
    assert torch.allclose(first_errors(search), by_weight, rtol=1e-3, atol=1e-7)


def test_weight_scales_of_each_granularity() -> None:
    bench = bench_of(small_net(), images(1))
    qkv, fc1, depthwise = (bench.site(n) for n in ("attn.qkv", "mlp.fc1", "depthwise"))
    assert [count_scales(s, "released") for s in (qkv, fc1, depthwise)] == [3, 1, 48]
    assert [count_scales(s, "per_tensor") for s in (qkv, fc1, depthwise)] == [1, 1, 1]
    assert [count_scales(s, "per_channel") for s in (qkv, fc1, depthwise)] == [144, 192, 48]
    model = apply_method(small_net(), "ptq4vit-per-channel", [images(2)], changes=FEW)
    assert quant_operators(model)["mlp.fc1"].weight_scheme.step.shape == (192, 1)


def test_float_widths_leave_the_network_alone() -> None:
    off = {"act_bits": None, "weight_bits": None}
    model = apply_method(small_net(), "ptq4vit", [images(2)], changes=off)
    assert torch.equal(model(images(3, 1)), small_net()(images(3, 1)))
    for bits in ({"act_bits": None}, {"weight_bits": None}):
        half = apply_method(small_net(), "ptq4vit", [images(2)], changes={**FEW, **bits})
        assert half(images(1)).isfinite().all()


@pytest.mark.parametrize("metric", [FISHER, MSE])
def test_eight_bits_are_close_to_float_and_batches_do_not_mix(metric: str) -> None:
    eight = {**FEW, "act_bits": 8, "weight_bits": 8, "metric": metric, "candidates": 100}
    with torch.no_grad():
        model = apply_method(small_net(), "ptq4vit", [images(4)], changes=eight)
        x = images(4)
        assert snr(small_net()(x), model(x)) > 25
        assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


def test_saved_models_give_the_same_masks(tmp_path) -> None:
    model = apply_method(small_net(), "ptq4vit", [images(2)], changes=FEW)
    codtdq.save(model, tmp_path / "q")
    again = codtdq.load(tmp_path / "q", model=small_net(seed=5))
    assert torch.equal(again(images(2)), model(images(2)))


@pytest.mark.parametrize(
    ("field", "value"), [("metric", "kl"), ("w_granularity", "row"), ("alpha", 2.0), ("rounds", 0)]
)
def test_wrong_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        PTQ4ViTConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ptq4vit", "noisyquant"])
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_eight_bits_keep_the_score_of_the_small_models(name: str, method: str) -> None:
    model = codtdq.create_model(name)
    batches = CalibrationImages(model, open_dataset("camosynth/calib", limit=32), count=32)
    eight = apply_method(model, method, batches, changes={"act_bits": 8, "weight_bits": 8})
    tests = open_dataset("camosynth/test-easy", limit=16)
    scores = [evaluate(m, tests).metrics["S"] for m in (model, eight)]
    assert scores[1] == pytest.approx(scores[0], abs=0.01)
