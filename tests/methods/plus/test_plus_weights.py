"""Layer problems, compensated rounding and the stored weights."""

import itertools

import pytest
import torch
from torch import nn

from codtdq.methods.plus.layer import LayerSettings, fit_layer
from codtdq.methods.plus.moments import Moments, input_rows, output_rows
from codtdq.methods.plus.rounding import (
    compensated_codes,
    nearest_codes,
    quadratic_error,
    refine,
    search_scales,
)
from codtdq.operators.tokens import input_tokens
from codtdq.schemes.multiplied import MultipliedWeight, MultiplierFormat
from codtdq.schemes.weight_groups import GroupedWeight, group_index, weight_from_rows, weight_rows


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


OPERATORS = {
    "linear": (nn.Linear(20, 6), (2, 7, 20)),
    "conv": (nn.Conv2d(20, 6, 3, padding=1), (2, 20, 5, 6)),
    "strided": (nn.Conv2d(20, 6, (3, 2), stride=2, dilation=(1, 2)), (2, 20, 9, 8)),
    "same": (nn.Conv2d(20, 6, 3, padding="same", padding_mode="reflect"), (2, 20, 5, 6)),
    "grouped": (nn.Conv2d(20, 8, 3, groups=4), (2, 20, 5, 6)),
    "depthwise": (nn.Conv2d(20, 20, 3, padding=1, groups=20), (2, 20, 5, 6)),
    "conv1d": (nn.Conv1d(20, 6, 3, padding=1), (2, 20, 9)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_times_weight_rows_is_the_operator(name):
    module, shape = OPERATORS[name]
    x = torch.randn(shape)
    rows = input_rows(module, input_tokens(module, x), x.shape)
    groups = rows.shape[0]
    blocks = weight_rows(module.weight).reshape(groups, -1, rows.shape[2])
    got = rows @ blocks.mT + module.bias.reshape(groups, 1, -1)
    assert torch.allclose(got, output_rows(module, module(x)), atol=1e-5)


def problem_data(rows=400, columns=12, outputs=3, offset=0.0):
    mix = torch.randn(columns, columns)
    x = torch.randn(1, rows, columns) @ mix + offset
    y = x @ torch.randn(1, columns, outputs) + 0.3 * torch.randn(1, rows, outputs) + 2.0
    return x, y


def moments_of(x, y, parts=2):
    sums = Moments(x[:, 0], y[:, 0])
    for a, b in zip(x.chunk(parts, 1), y.chunk(parts, 1)):
        sums.add(a, b)
    return sums


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("free", [True, False])
def test_errors_come_from_moments_alone(offset, free):
    x, y = problem_data(offset=offset)
    bias = None if free else torch.randn(1, 3)
    problem = moments_of(x, y).problem(bias)
    weight = torch.randn(1, 3, 12)
    left = y - x @ weight.mT
    left = left - (left.mean(1, keepdim=True) if free else bias.unsqueeze(1))
    wanted = float(left.square().sum(2).mean())
    assert problem.error(weight) == pytest.approx(wanted, rel=1e-2 if offset and not free else 1e-3)


def test_ridge_goes_from_least_squares_to_the_weight():
    x, y = problem_data()
    problem = moments_of(x, y).problem(None)
    weight = torch.randn(1, 3, 12)
    design = torch.cat([x[0], torch.ones(400, 1)], 1)
    squares = torch.linalg.lstsq(design, y[0]).solution
    shifted = problem.ridge(weight, 1e-7)
    assert torch.allclose(shifted[0], squares[:12].T, atol=1e-2)
    assert torch.allclose(problem.bias(shifted)[0], squares[12], atol=1e-2)
    assert torch.allclose(problem.ridge(weight, 1e6), weight, atol=1e-3)
    between = problem.error(problem.ridge(weight, 0.1))
    assert problem.error(shifted) < between < problem.error(weight)


def correlated(columns, groups=1):
    x = torch.randn(groups, 500, columns) @ torch.randn(columns, columns) + torch.randn(
        groups, 500, 1
    )
    return x.mT @ x / 500


def test_with_uncorrelated_inputs_compensation_is_plain_rounding():
    weight, index = torch.randn(2, 5, 40), torch.arange(40) // 32
    eye = torch.eye(40).expand(2, 40, 40)
    scales, _ = search_scales(weight, torch.ones(2, 40), index, 4)
    plain = nearest_codes(weight, scales, index, 4)
    assert torch.equal(compensated_codes(weight, eye, scales, index, 4).codes, plain.codes)


def test_each_step_lowers_the_error():
    weight, index, hessian = torch.randn(3, 16, 80), torch.arange(80) // 32, correlated(80, 3)
    scales, scale_format = search_scales(weight, hessian.diagonal(dim1=1, dim2=2), index, 4)
    plain = nearest_codes(weight, scales, index, 4)
    moved = compensated_codes(weight, hessian, scales, index, 4)
    refined = refine(moved, weight, hessian, 4, scale_format, 2)
    errors = [quadratic_error(r.values, weight, hessian) for r in (plain, moved, refined)]
    assert errors[1] < 0.7 * errors[0] and errors[2] < 0.95 * errors[1]
    assert refined.codes.min() >= -8 and refined.codes.max() <= 7


def test_refined_codes_cannot_be_improved_one_at_a_time():
    weight, index, hessian = torch.randn(1, 1, 6), torch.zeros(6, dtype=torch.long), correlated(6)
    scales, scale_format = search_scales(weight, torch.ones(1, 6), index, 3)
    start = nearest_codes(weight, scales, index, 3)
    fixed = MultiplierFormat(scale_format.unit, 3)
    done = refine(start, weight, hessian, 3, fixed, 30)
    least = quadratic_error(done.values, weight, hessian)
    for column, code in itertools.product(range(6), range(-4, 4)):
        other = done.codes.clone()
        other[..., column] = code
        assert quadratic_error(other * done.steps, weight, hessian) >= least * (1 - 1e-5)


def test_negative_scales_use_the_longer_side():
    weight = torch.linspace(-0.7, 0.8, 16).reshape(1, 1, 16)  # sixteen levels of 0.1, turned
    index = torch.zeros(16, dtype=torch.long)
    scales, _ = search_scales(weight, torch.ones(1, 16), index, 4, factors=(1.0,))
    assert float(scales) < 0
    codes = nearest_codes(weight, scales, index, 4).codes
    assert codes.flatten().tolist() == list(range(7, -9, -1))


@pytest.mark.parametrize("shape", [(6, 40), (6, 48, 3, 3), (12, 1, 7, 7), (4, 3, 5, 5)])
def test_store_gives_back_what_was_settled(shape):
    shape = torch.Size(shape)
    index = group_index(shape, 32)
    rows = torch.randn(1, shape[0], shape[1:].numel())
    ones = torch.ones(1, rows.shape[2])
    scales, stored = search_scales(rows, ones, index, 4, whole=False)
    rounded = nearest_codes(rows, scales, index, 4)
    store = GroupedWeight.from_codes(rounded.codes[0], rounded.scales[0], stored, shape, 4, 32)
    assert torch.equal(store.dequantize(), weight_from_rows(rounded.values[0], shape))
    assert torch.equal(weight_rows(store.dequantize()), rounded.values[0])
    scales, stored = search_scales(rows, ones, index, 4)
    rounded = nearest_codes(rows, scales, index, 4)
    store = MultipliedWeight.from_codes(
        rounded.codes[0], rounded.scales[0], stored.unit[0], shape, 4, 32
    )
    p = store.multipliers()
    assert p.abs().min() >= 1 and int(p.abs().max()) == 15 and (p < 0).any()
    wanted = weight_from_rows(rounded.values[0], shape)
    assert torch.allclose(store.dequantize(), wanted, rtol=1e-6, atol=0)
    lowered = store.lower()
    assert int(lowered.whole().abs().max()) <= 120
    values = lowered.whole() * lowered.factor.reshape(-1, 1, 1)
    assert torch.equal(values.flatten(1), weight_rows(store.dequantize()))


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7, 8])
def test_weights_of_other_widths_are_whole(bits):
    rows, index = torch.randn(1, 6, 70), torch.arange(70) // 32
    index = index if bits < 7 else index * 0  # multiples of wider codes are no bytes
    scales, stored = search_scales(rows, torch.ones(1, 70), index, bits)
    rounded = nearest_codes(rows, scales, index, bits)
    shape = torch.Size((6, 70))
    store = MultipliedWeight.from_codes(
        rounded.codes[0], scales[0], stored.unit[0], shape, bits, 32
    )
    assert torch.allclose(store.dequantize(), rounded.values[0], rtol=1e-6, atol=0)
    lowered = store.lower()
    assert int(lowered.whole().abs().max()) <= 127 and lowered.bits == (4 if bits <= 4 else 8)
    values = lowered.whole()[:, 0] * lowered.factor.unsqueeze(1)
    assert torch.allclose(values, store.dequantize(), rtol=1e-6, atol=0)


def test_groups_do_not_cross_taps_and_bits_are_what_is_stored():
    index = group_index(torch.Size((8, 48, 3, 3)), 32)
    assert index.bincount().tolist() == [32, 16] * 9
    assert group_index(torch.Size((8, 1, 7, 7)), 32).bincount().tolist() == [32, 17]
    rows = torch.randn(1, 64, 256)
    index, shape = torch.arange(256) // 32, torch.Size((64, 256))
    scales, stored = search_scales(rows, torch.ones(1, 256), index, 4)
    rounded = nearest_codes(rows, scales, index, 4)
    store = MultipliedWeight.from_codes(rounded.codes[0], scales[0], stored.unit[0], shape, 4, 32)
    assert store.bits() == pytest.approx(4 + 5 / 32 + 32 / 256)
    scales, stored = search_scales(rows, torch.ones(1, 256), index, 4, whole=False)
    store = GroupedWeight.from_codes(rounded.codes[0], scales[0], stored, shape, 4, 32)
    assert store.bits() == pytest.approx(4 + 8 / 32 + 32 / shape.numel())


def test_settling_uses_the_quantized_inputs():
    """Inputs that lost half of their amplitude: the shifted target gives it back."""
    weight = torch.randn(8, 32)
    x = torch.randn(1, 4000, 32)
    y = x @ weight.T + 1.0

    def settled(settings):
        fit = moments_of(x[:, :3000] / 2, y[:, :3000])
        held = moments_of(x[:, 3000:] / 2, y[:, 3000:])
        return fit_layer(weight, None, 1, fit, held, settings)

    result = settled(LayerSettings(4, ridges=(0.001, 0.1)))
    assert result.ridge == 0.001 and result.error < 0.05 * result.float_error
    assert torch.allclose(result.bias, torch.ones(8), atol=0.3)
    literal = settled(LayerSettings(4, ridges=(), correct_bias=False))
    assert literal.ridge is None and literal.bias is None
    assert literal.error == pytest.approx(literal.float_error, rel=0.2)
