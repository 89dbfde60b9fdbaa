"""Transforms change what is rounded, not what is computed."""

import pytest
import torch
from torch import nn

from codtdq.methods.plus.equalize import equalizing_scale
from codtdq.methods.plus.method import install_transform
from codtdq.methods.registry import QuantConfig
from codtdq.methods.workbench import Workbench
from codtdq.numerics.rotation import rotate_blocks
from codtdq.schemes.inputs import FloatInput
from codtdq.schemes.transforms import Transform


def vector(channels, seed):
    return torch.rand(channels, generator=torch.Generator().manual_seed(seed)) + 0.5


def hadamard(size):
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


def test_rotation_is_the_hadamard_matrix_of_each_whole_block():
    x = torch.randn(5, 70, generator=torch.Generator().manual_seed(0))
    rotated = rotate_blocks(x)
    matrix = hadamard(32)
    assert torch.allclose(rotated[:, :32], x[:, :32] @ matrix, atol=1e-5)
    assert torch.allclose(rotated[:, 32:64], x[:, 32:64] @ matrix, atol=1e-5)
    assert torch.equal(rotated[:, 64:], x[:, 64:])
    assert torch.allclose(rotate_blocks(rotated), x, atol=1e-5)


CHANNELS = 40
PARTS = {
    "shift": {"shift": vector(CHANNELS, 1)},
    "scale": {"scale": vector(CHANNELS, 2)},
    "order": {"order": torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(3))},
    "hadamard": {"hadamard": True},
}
PARTS["all"] = {k: v for part in PARTS.values() for k, v in part.items()}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["linear", "pointwise", "padded"])
def test_the_operator_computes_what_it_did(part, kind):
    if kind == "padded" and part in ("shift", "all"):
        pytest.skip("zeros that are padded cannot be shifted")
    torch.manual_seed(0)
    module = {
        "linear": nn.Linear(CHANNELS, 6),
        "pointwise": nn.Conv2d(CHANNELS, 6, 1, bias=False),
        "padded": nn.Conv2d(CHANNELS, 6, 3, padding=1),
    }[kind]
    x = torch.randn(2, 5, CHANNELS) if kind == "linear" else torch.randn(2, CHANNELS, 5, 5)
    model = nn.Sequential(module).eval().requires_grad_(False)
    wanted = model(x)
    bench = Workbench(model, QuantConfig(), [x])
    transform = Transform(**PARTS[part])
    (site,) = bench.sites
    install_transform(bench, site, FloatInput(), transform)
    assert torch.allclose(model(x), wanted, atol=1e-4)
    assert not torch.allclose(model[0].weight, module.weight * 2)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.5, 1.0])
def test_equalizing_cancels_factors_between_norm_and_weight(exponent):
    spread, weight, hidden = vector(64, 4), vector(64, 5), vector(64, 6).pow(12)
    plain = equalizing_scale(spread, weight, exponent)
    planted = equalizing_scale(spread * hidden, weight / hidden, exponent)
    left = spread * hidden / planted
    expected = spread / plain
    assert torch.allclose(left / left[0], expected / expected[0], rtol=1e-3)


def test_dead_channels_keep_their_scale():
    spread, weight = vector(8, 7), vector(8, 8)
    spread[3], weight[5] = 0.0, 0.0
    scale = equalizing_scale(spread, weight, 0.5)
    assert scale[3] == 1 and scale[5] == 1 and bool((scale > 0).all())
