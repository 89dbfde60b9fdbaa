"""Groups on searched grids: the engine against the same grids in torch, group by group."""

import pytest
import torch
from engine_cases import SETS, group_losses, instruction_set, needs_engine, torch_threads

from codtdq.engine.cpu import library
from codtdq.engine.cpu.searched import encode_pixels, encode_tokens, search_spec, values
from codtdq.engine.cpu.simulation import searched_groups
from codtdq.errors import UnsupportedError
from codtdq.schemes.group_grid import ZERO_POINTS
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform, Transformed

pytestmark = needs_engine
KINDS = (TokenGroups, PixelGroups)


def noise(*shape, seed=0):
    """Tokens whose channels differ in size; the first token is zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.rand(shape[-1], generator=generator) * 3
    x[0, 0] = 0
    return x


def agree(scheme, x):
    """Equal values; only groups whose two best candidates tie may differ, and those are few."""
    found, plain = scheme(x), scheme.plain(x)
    differ = found != plain
    if differ.any():
        ours, theirs = (
            group_losses(scheme, found, x)[differ],
            group_losses(scheme, plain, x)[differ],
        )
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=0)
        assert differ.float().mean() < 1e-3 or x.numel() < 5000
    return found


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("zero_point", ZERO_POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_method(kind, zero_point, name):
    with instruction_set(name):
        for trials, zero_weight in ((1, 0.0), (4, 0.0), (4, 0.5), (6, 0.0)):
            scheme = kind(4, 32, trials, zero_weight, zero_point)
            for shape in ((2, 77, 64), (1, 300, 72), (3, 5, 18), (1, 1, 3), (40, 1, 33)):
                agree(scheme, noise(*shape))
                agree(scheme, noise(*shape, seed=1).relu())


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_width_and_any_group(kind, name):
    with instruction_set(name):
        for bits in range(2, 8):
            for group in (1, 4, 20, 64, 128):
                agree(kind(bits, group, trials=3), noise(2, 70, 40, seed=bits))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_magnitudes_of_every_kind(kind, name):
    scheme = kind(4, 32, trials=4)
    with instruction_set(name):
        for size in (1e-38, 1e-30, 1e-12, 1e12, 3e36):
            x = noise(1, 64, 64) * size
            found = scheme(x)
            if 1e-12 <= size <= 1e12:  # squares are neither lost nor beyond float32
                agree(scheme, x)
            assert found.isfinite().all()
            limit = (2 * x.abs().max() / 15).item() + 1e-30
            assert (found - x).abs().max().item() < limit
        x = noise(1, 64, 64)
        x[0, 5, 7] = 1e6  # every other group has the smallest scale there is
        agree(scheme, x)
        zeros = torch.zeros(2, 40, 40)
        assert torch.equal(scheme(zeros), zeros)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("zero_point", ZERO_POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_units_that_are_given(kind, zero_point, name):
    with instruction_set(name):
        for trials, unit in ((1, 0.01), (2, 0.01), (3, 0.01), (4, 1e-3), (4, 3e-5), (5, 0.01)):
            scheme = kind(4, 32, trials, zero_point=zero_point, unit=unit)
            for shape in ((2, 77, 64), (1, 300, 72), (3, 5, 18), (1, 1, 3)):
                agree(scheme, noise(*shape))
        reach = 448 * 3e-5 * 15  # of the last unit but one: larger values are cut
        scheme = kind(4, 32, 4, zero_point="inside", unit=3e-5)
        assert scheme(noise(2, 77, 64)).abs().max() <= reach * 1.001
        for size in (1e10, 1e36):  # far beyond: the largest scales, not the smallest
            far = kind(4, 32, 4, unit=1e-4)(torch.full((1, 64, 64), size))
            assert bool((far >= 448 * 1e-4 * 15 / 2).all())
            assert torch.equal(far, kind(4, 32, 4, unit=1e-4).plain(torch.full((1, 64, 64), size)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_under_a_given_unit_a_bad_value_spoils_its_group_alone(kind, bad):
    x, scheme = noise(3, 70, 40), kind(4, 32, trials=4, unit=0.01)
    clean = scheme(x)
    for place in ((1, 69, 39), (1, 0, 0), (1, 33, 17)):
        spoilt = x.clone()
        spoilt[place] = bad
        for name in SETS:
            with instruction_set(name):
                found = scheme(spoilt)
            assert torch.equal(found.isnan(), scheme.plain(spoilt).isnan())
            assert found[place].isnan() and found.isnan().sum() <= 32
            assert torch.equal(found[~found.isnan()], clean[~found.isnan()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_image_with_a_value_that_is_not_finite_is_nan_and_no_other(kind, bad):
    x = noise(3, 70, 40)
    for place in ((1, 69, 39), (1, 0, 0), (1, 33, 17)):
        spoilt = x.clone()
        spoilt[place] = bad
        for name in SETS:
            with instruction_set(name):
                found = kind(4, 32, trials=4)(spoilt)
            assert found[1].isnan().all()
            assert torch.equal(found[[0, 2]], kind(4, 32, trials=4)(x)[[0, 2]])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_order_and_threads_do_not_matter(kind):
    scheme = kind(4, 32, trials=4)
    x = noise(3, 300, 72)
    expected = scheme(x)
    views = (
        x.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([x, x], 2)[..., :72],
        torch.cat([x, x], 1)[:, :300],
        x.transpose(0, 1).contiguous().transpose(0, 1),
    )
    for view in views:
        assert torch.equal(scheme(view), expected)
    with torch_threads(2):
        assert torch.equal(scheme(x), expected)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("channels", [18, 32, 70, 128])
def test_codes_steps_and_sums_belong_together(channels, name):
    scheme, x = TokenGroups(4, 32, trials=4), noise(2, 37, channels)
    stored = min(32, -(-channels // 4) * 4)
    with instruction_set(name):
        found = encode_tokens(x, search_spec(scheme.grid), stored, 4)
        x_hat = scheme(x)
    groups = found.codes.view(2 * 37, -1, stored)
    assert torch.equal(groups.sum(2, dtype=torch.int32), found.sums)
    assert groups.abs().max() <= 15
    flat = (groups * found.step.unsqueeze(2)).flatten(1)
    assert not found.codes[:, channels:].any()
    assert torch.equal(flat[:, :channels], x_hat.flatten(0, 1))


def test_codes_and_steps_of_pixel_groups():
    scheme, x = PixelGroups(4, 32, trials=4), noise(2, 70, 24)
    found = encode_pixels(x, search_spec(scheme.grid), 4)
    assert found.step.shape == (2, 3, 24)
    steps = found.step.repeat_interleave(32, 1)[:, :70]
    assert torch.equal(found.codes.view(2, 70, 24) * steps, scheme(x))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("channels", [24, 64, 100])
def test_transforms_give_the_bits_of_torch(channels, name):
    generator = torch.Generator().manual_seed(channels)
    shift, scale = torch.randn(channels, generator=generator), torch.rand(channels) + 0.1
    order, x = torch.randperm(channels, generator=generator), noise(2, 50, channels)
    for transform in (
        Transform(hadamard=True),
        Transform(shift=shift),
        Transform(scale=scale, hadamard=True),
        Transform(order=order),
        Transform(shift, scale, order, True),
    ):
        scheme = Transformed(TokenGroups(4, 32, trials=4), transform=transform)
        form = scheme.lower()
        stored = min(32, -(-channels // 4) * 4)
        with instruction_set(name):
            found = encode_tokens(x, search_spec(form.grid, form.transform), stored, 4)
            expected = scheme(x)
        flat = (found.codes.view(100, -1, stored) * found.step.unsqueeze(2)).flatten(1)
        assert torch.equal(flat[:, :channels], expected.flatten(0, 1))


def test_what_the_engine_does_not_take_stays_with_torch():
    x = noise(1, 40, 200)
    for scheme in (
        TokenGroups(4, unit=1e-35),
        TokenGroups(4, unit=1e30),
        TokenGroups(8),
        TokenGroups(4, 200),
        TokenGroups(4, trials=17),
        TokenGroups(5, zero_point="wide"),
    ):
        assert scheme.grid.unsupported_reason() and searched_groups(x, scheme.grid) is None
        assert torch.equal(scheme(x), scheme.plain(x))
        with pytest.raises(UnsupportedError, match="refused"):
            values(x, scheme.grid)
    scheme = TokenGroups(4)
    assert searched_groups(x.double(), scheme.grid) is None
    assert searched_groups(x[:, :0], scheme.grid) is None
    assert searched_groups(x.clone().requires_grad_(), scheme.grid) is None
    with library.disabled():
        assert searched_groups(x, scheme.grid) is None
