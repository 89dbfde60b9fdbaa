"""Weights with a grid per group: searches, learned rounding and blocks against plain loops."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from codtdq.methods.rivals.arcquant import residual_channels
from codtdq.methods.rivals.fima_init import (
    best_or_present,
    collect_windows,
    group_errors,
    search_site,
)
from codtdq.methods.rivals.fima_q import FimaQConfig
from codtdq.methods.rivals.fisher import MSE, sample_operators
from codtdq.methods.rivals.fp4_operators import BlockInteger, Fp4Input, Fp4Weight
from codtdq.methods.rivals.pq_sam import PqSamConfig
from codtdq.methods.rivals.pq_sam_tuning import TunedOperator
from codtdq.methods.rivals.ptq4vit import PTQ4ViTConfig, ScaleSearch
from codtdq.methods.rivals.sam_grids import searched_weight
from codtdq.methods.rivals.scale_search import column_groups
from codtdq.methods.rivals.soft_rounding import SoftRounding
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import fake_shifted
from codtdq.numerics.nvfp4 import fake_nvfp4, tensor_scale
from codtdq.schemes.weights import UniformWeight, from_group_rows, group_rows
from small_nets import images, small_net


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bench_of(config_class, **changes):
    model = small_net().eval().requires_grad_(False)
    return Workbench(model, config_class(**changes), [images(2), images(2, seed=1)])


def search_of(name, **changes):
    bench = bench_of(PTQ4ViTConfig, positions=10_000, candidates=20, **changes)
    sample = sample_operators(bench, metric=MSE, images=4, positions=10_000)[name]
    return ScaleSearch(bench.site(name), sample, bench.config)


@pytest.mark.parametrize(("shape", "group"), [((5, 7), 3), ((4, 3, 2, 2), 5), ((6, 1, 3), 8)])
def test_rows_of_groups_and_back(shape, group):
    weight = seeded(*shape)
    rows = group_rows(weight, group)
    length = weight[0].numel()  # a group that is longer is the whole output
    assert rows.shape == (shape[0] * -(-length // group), min(group, length))
    assert torch.equal(from_group_rows(rows, weight.shape), weight)


def test_column_groups_leave_what_the_others_do_not_give():
    x, w, target = seeded(2, 9, 10), seeded(6, 10, seed=1), seeded(2, 9, 3, seed=2)
    for part in column_groups(x, w, target, 4):
        others = w.clone()
        others[:, part.columns] = 0
        outputs = x @ others.view(2, 3, 10).transpose(1, 2)
        assert torch.allclose(part.target, target - outputs, atol=1e-4)
        assert torch.equal(part.x_hat, x[..., part.columns])
        w[:, part.columns] *= 0.5  # the caller's choice counts for the groups after it


@pytest.mark.parametrize("name", ["mlp.fc2", "mix", "depthwise"])
def test_ptq4vit_takes_the_best_scale_of_each_group_in_turn(name):
    """Every candidate of every group put into the whole weight, and the product run."""
    search = search_of(name, weight_group_size=40 if name != "depthwise" else 5)
    group, weight = search.site.weight_group, search.weight
    x_hat = search._quantized(search.input_step)[:, 0]
    outputs, count = weight.shape[0], search.columns
    assert search.weight_start.shape == (outputs * count,) and count > 1

    def errors(steps):
        store = UniformWeight.quantize(
            weight, 4, step=steps.reshape(-1, 1), symmetric=True, group=group
        )
        w_hat = store.dequantize().view(x_hat.shape[0], -1, weight.shape[1])
        miss = x_hat @ w_hat.transpose(1, 2) - search.target
        return miss.square().sum(1).flatten()  # [O]

    start = search.weight_start.view(outputs, count)
    steps = start.clone()
    for index in range(count):
        tried = []
        for factor in search.factors():
            steps[:, index] = factor * start[:, index]
            tried.append(errors(steps))
        best = torch.stack(tried).argmin(0)
        steps[:, index] = search.factors()[best] * start[:, index]
    before = errors(start)
    search.search_weight()
    found = search.weight_step.view(outputs, count)
    # candidates that are equally good to the last digits may change places
    assert (found - steps).abs().le(1e-6).float().mean() > 0.97
    assert torch.allclose(errors(found), errors(steps), rtol=2e-2)
    assert errors(found).sum() < before.sum()


def test_ptq4vit_keeps_the_scale_of_a_group_that_reads_nothing():
    search = search_of("mlp.fc1", weight_group_size=16)
    search.x[..., 16:32] = 0
    search.search_weight()
    found, start = (s.view(-1, 3) for s in (search.weight_step, search.weight_start))
    assert torch.equal(found[:, 1], start[:, 1]) and not torch.equal(found[:, 0], start[:, 0])


@pytest.mark.parametrize("name", ["mlp.fc2", "mix", "depthwise", "stem"])
def test_fima_searches_group_after_group(name):
    bench = bench_of(FimaQConfig, weight_group_size=8)
    kept, site = collect_windows(bench, 4)[name], bench.site(name)
    x, losses = kept.stacked(name), []
    y = x @ site.float_weight.flatten(1).unflatten(0, (len(x), -1)).transpose(1, 2)
    for rounds in (0, 2):
        inputs, weight = search_site(site, kept, rounds)
        assert weight.group == 8
        w = weight.dequantize().flatten(1).unflatten(0, (len(x), -1))
        losses.append(float((inputs(x) @ w.transpose(1, 2) - y).square().mean()))
    assert losses[1] < losses[0]


def test_fima_weighs_the_candidates_of_a_group_by_the_output():
    """The quadratic form against products for every position, but for a constant per output."""
    x, w, y = seeded(2, 9, 10), seeded(6, 10, seed=1), seeded(2, 9, 3, seed=2)
    grids = seeded(6, 5, seed=3).abs() / 5 + 0.05, torch.arange(5.0).expand(6, 5) + 5
    part = list(column_groups(x, w.clone(), y, 4))[1]
    values = w.view(2, 3, 10)[..., part.columns]
    found = group_errors(part, values, grids, 4)
    expected = []
    for p in range(5):
        step, zero = (g[:, p].view(2, 3, 1) for g in grids)
        w_hat = fake_shifted(values, step, zero, 0, 15)
        miss = part.x_hat @ w_hat.transpose(1, 2) - part.target
        expected.append(miss.square().sum(1).flatten())
    constant = part.target.square().sum(1).flatten()[:, None]
    assert torch.allclose(found + constant, torch.stack(expected, 1), rtol=1e-4, atol=1e-4)


def test_fima_keeps_a_grid_where_no_candidate_is_better():
    grids = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.zeros(2, 2)
    present = torch.full((2, 1), 7.0), torch.full((2, 1), 3.0)
    step, zero = best_or_present(grids, torch.tensor([[0.5, 0.5], [0.5, 0.1]]), present)
    assert step.tolist() == [[7.0], [2.0]] and zero.tolist() == [[3.0], [0.0]]


def test_rounding_is_learned_in_groups():
    weight = seeded(6, 10)
    store = UniformWeight.minmax(weight, 4, symmetric=False, group=4)
    soft = SoftRounding(weight, store)
    assert torch.equal(soft.hardened().dequantize(), store.dequantize())  # h >= 1/2 is to nearest
    assert soft.hardened().settings() == store.settings()
    values = soft()
    assert values.shape == weight.shape
    values.square().sum().backward()
    gradient = from_group_rows(soft.logits.grad, weight.shape)
    assert gradient.ne(0).float().mean() > 0.6  # none at the ends of a grid
    assert not soft.logits.grad.view(6, 3, 4)[:, 2, 2:].any()  # nothing reads the filling


def test_tuned_steps_are_those_of_groups():
    bench = bench_of(PqSamConfig)
    site = bench.site("mlp.fc1")
    weight = site.float_weight.clone()  # [192, 48]
    store = UniformWeight.minmax(weight, 4, symmetric=False, group=20)
    operator = bench.install(site, weight=store)
    tuned = TunedOperator(operator, weight, store)
    assert tuned.starts["weight_step"].shape == (192 * 3, 1)
    tuned.write(learning=True)
    assert torch.allclose(operator.weight_cache, store.dequantize())
    operator.weight_cache.square().sum().backward()
    assert tuned.thetas["weight_step"].grad.ne(0).all()
    with torch.no_grad():
        tuned.thetas["weight_step"][0] = 0.5  # of the first 20 weights of the first output
    tuned.finish()
    changed = operator.weight != store.dequantize()
    assert operator.weight_scheme.group == 20
    assert changed[0, :20].any() and not changed[0, 20:].any() and not changed[1:].any()


def test_power_grids_of_groups_are_nearer_to_the_weight():
    weight = seeded(12, 8, 3) * torch.linspace(0.1, 3, 8).view(1, 8, 1)
    whole, groups = (searched_weight(weight, 4, exhaustive=True, group=g) for g in (None, 6))
    assert groups.step.shape == (48, 1)
    errors = [(s.dequantize() - weight).abs().pow(2.4).sum() for s in (whole, groups)]
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize(("channels", "block"), [(32, 8), (20, 8), (48, 32)])
def test_fp4_blocks_have_the_size_that_is_asked_for(channels, block):
    """Each block alone under the tensor's scale; a short one comes first."""
    x = seeded(2, 5, channels)
    weight = seeded(6, channels, seed=1)
    edges = [0, *range(channels % block or block, channels + 1, block)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    t = tensor_scale(x.abs().amax((1, 2), keepdim=True))
    expected = torch.cat([fake_nvfp4(x[..., part], t, block) for part in parts], -1)
    assert torch.equal(Fp4Input(block=block)(x), expected)
    t = tensor_scale(weight.abs().amax().reshape(1))
    expected = torch.cat([fake_nvfp4(weight[:, part], t, block) for part in parts], -1)
    store = Fp4Weight.quantize(weight, group=block)
    assert torch.equal(store.dequantize(), expected)
    assert store.scales.shape == (6, len(parts)) and store.settings()["group"] == block


def test_fp4_blocks_mix_taps_where_channels_do_not_fill_them():
    weight = seeded(4, 8, 3)
    assert Fp4Weight.quantize(weight, group=8).scales.shape == (12, 1)  # tap by tap
    assert Fp4Weight.quantize(weight, group=12).scales.shape == (4, 2)  # 24 values in a row


def test_a_residual_has_whole_blocks_of_the_size():
    rows = torch.full((5, 64), 0.1)
    rows[:, :9] = 1.0
    assert [residual_channels(rows, 0.125, 0.5, block) for block in (4, 8, 16)] == [12, 16, 16]
    tokens, order = seeded(1, 3, 64), torch.arange(64)
    twice = Fp4Input(12, 4, order=order)(tokens)
    plain = Fp4Input(0, 4, order=order)(tokens)
    assert torch.equal(twice[..., :52], plain[..., :52])
    assert F.mse_loss(twice[..., 52:], tokens[..., 52:]) < 0.1 * F.mse_loss(
        plain[..., 52:], tokens[..., 52:]
    )


def test_bits_count_the_scales_of_blocks():
    assert Fp4Weight.quantize(seeded(64, 64), group=8).bits() == 5 + 32 / 64**2
    assert Fp4Input(block=32).bits(64) == 4.25
    assert BlockInteger(8, 8).bits(32) == 12
    assert Fp4Input(block=32).settings() == {"residual": 0, "block": 32}
    assert Fp4Input().settings() == {"residual": 0}  # files of the format's own blocks stay as is
