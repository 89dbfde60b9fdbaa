"""Token and pixel groups: what the grid of a group is, and what travels with it."""

import pytest
import torch

from codtdq.schemes.group_grid import quantize_groups
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.token_groups import TokenGroups


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def squared(x, y):
    return (x - y).square().sum(-1)


def test_known_answer():
    # minimum -3, maximum 12: step 1, zero-point 3, so that integers are exact and halves tie
    x = torch.tensor([[-3.0, 12.0, 0.4, 7.6, 0.0, 1.5]])
    exact = torch.tensor([[-3.0, 12.0, 0.0, 8.0, 0.0, 2.0]])
    assert torch.allclose(quantize_groups(x, 4), exact, rtol=1e-6)


def test_values_are_codes_of_one_grid_that_contains_zero():
    x = noise(2, 50, 32) + 0.5
    x_hat = quantize_groups(x, 4, trials=4)
    for group in x_hat.reshape(-1, 32):
        levels = group.unique()
        step = levels.diff().min()
        codes = levels / step  # zero is a level: all values are whole steps from it
        assert torch.allclose(codes, codes.round(), atol=1e-3)
        assert codes.max() - codes.min() <= 15.01


def test_scales_have_three_mantissa_bits():
    x = noise(1, 200, 32)
    x_hat = quantize_groups(x, 4)
    steps = torch.stack([g.unique().diff().min() for g in x_hat[0]])
    ratio = steps / steps.max()  # of two E4M3 numbers: m 2^e / m' with 8 <= m, m' <= 15
    mantissas = torch.arange(8, 16).float()
    possible = (mantissas[:, None] / mantissas).flatten()
    possible = torch.cat([possible * 2.0**-k for k in range(12)])
    off = ((ratio[:, None] - possible).abs() / ratio[:, None]).amin(1)
    assert off.max() < 1e-4


def test_zero_points_halve_the_step_of_one_sided_inputs():
    x = torch.relu(noise(1, 400, 32)) + 0.01
    lopsided, symmetric = quantize_groups(x, 4), quantize_groups(x, 4, zero_point="none")
    assert squared(lopsided, x).sum() < 0.4 * squared(symmetric, x).sum()


def test_weighing_never_loses_to_the_plain_range():
    x = noise(1, 300, 32)
    plain, searched = quantize_groups(x, 4), quantize_groups(x, 4, trials=4)
    assert bool((squared(searched, x) <= squared(plain, x) + 1e-6).all())
    assert squared(searched, x).sum() < 0.96 * squared(plain, x).sum()


def test_zero_weight_keeps_weak_evidence():
    x = noise(1, 300, 32).pow(3)
    free = quantize_groups(x, 4, trials=4)
    careful = quantize_groups(x, 4, trials=4, zero_weight=4.0)
    assert (careful == 0).sum() < (free == 0).sum()


def test_wide_zero_points_spend_no_codes_on_an_offset():
    x = noise(1, 300, 32)
    wide = quantize_groups(x + 20, 4, zero_point="wide")
    centred = quantize_groups(x, 4)
    # as good as without the offset, but for the rounding of the zero-point itself
    assert squared(wide, x + 20).sum() < 1.3 * squared(centred, x).sum()
    assert squared(quantize_groups(x + 20, 4), x + 20).sum() > 10 * squared(wide, x + 20).sum()


@pytest.mark.parametrize("offset", [-1e3, -3.0, 0.0, 3.0, 1e3])
def test_codes_without_their_zero_point_fit_eight_bits(offset):
    x = 0.01 * noise(1, 50, 32) + offset
    x_hat = quantize_groups(x, 4, zero_point="wide")
    # the finest step that keeps q - z within int8, rounded up to an E4M3 number (one eighth)
    finest = torch.maximum((x.amax(-1) - x.amin(-1)) / 15, x.abs().amax(-1) / 112) * 1.13
    assert bool(((x_hat - x).abs().amax(-1) <= finest).all())
    assert all(group.unique().numel() <= 16 for group in x_hat[0])


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_units_do_not_matter(factor):
    x = noise(2, 9, 40)
    scheme = TokenGroups(4, trials=4)
    assert torch.allclose(scheme(x * factor), scheme(x) * factor, rtol=1e-6)


def test_token_groups_are_runs_of_channels():
    x = noise(1, 6, 72)
    x[0, 0, 0] = 50.0  # the image's largest range stays where it is
    changed = x.clone()
    changed[..., 33] *= 3  # in the second of three groups (32 + 32 + 8)
    before, after = TokenGroups(8)(x), TokenGroups(8)(changed)
    touched = (before != after).any(1)[0]
    assert not touched[:32].any() and not touched[64:].any() and touched[32:64].any()


def test_pixel_groups_are_runs_of_pixels_of_one_channel():
    x = noise(1, 70, 5)
    x[0, 0, 0] = 50.0
    changed = x.clone()
    changed[0, 40, 2] *= 3
    before, after = PixelGroups(8)(x), PixelGroups(8)(changed)
    touched = (before != after)[0]
    assert not touched[:, [0, 1, 3, 4]].any()
    assert not touched[:32, 2].any() and not touched[64:, 2].any() and touched[32:64, 2].any()


def test_a_loud_channel_does_not_silence_its_neighbours_pixels():
    x = noise(1, 64, 8)
    x[..., 0] *= 100
    quiet = x[..., 1:]
    token, pixel = TokenGroups(4)(x)[..., 1:], PixelGroups(4)(x)[..., 1:]
    assert squared(pixel, quiet).sum() < 0.02 * squared(token, quiet).sum()


@pytest.mark.parametrize("scheme", [TokenGroups(4), PixelGroups(4)])
def test_images_are_independent_and_odd_inputs_survive(scheme):
    x = noise(3, 7, 20)
    alone = torch.cat([scheme(one) for one in x.split(1)])
    x[1] *= 100
    assert torch.equal(scheme(x)[0], alone[0]) and torch.equal(scheme(x)[2], alone[2])
    assert torch.equal(scheme(torch.zeros(1, 4, 3)), torch.zeros(1, 4, 3))
    assert scheme(torch.zeros(2, 0, 3)).shape == (2, 0, 3)


def test_bits_count_everything():
    # 64 channels: two groups with 8 + 4 bits each, and 32 bits for an image of 100 tokens
    assert TokenGroups(4, positions=100).bits(64) == pytest.approx(4 + 24 / 64 + 32 / 6400)
    assert TokenGroups(4, zero_point="none", positions=100).bits(64) == pytest.approx(
        4 + 16 / 64 + 32 / 6400
    )
    assert TokenGroups(4, zero_point="wide", positions=100).bits(64) == pytest.approx(
        4 + 32 / 64 + 32 / 6400
    )
    assert PixelGroups(4, positions=25).bits(64) == pytest.approx(4 + 12 / 25 + 32 / 1600)
