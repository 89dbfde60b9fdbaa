"""Encoders of carriers give the bytes and units of the reference, with every set and thread."""

import math

import pytest
import torch
from carrier_cases import (
    SPECIAL,
    bounded,
    check_carried,
    difficult,
    engine_spec,
    everywhere,
    random,
    whole,
)
from engine_cases import needs_engine
from hypothesis import given
from hypothesis import strategies as st

from codtdq.engine.cpu import carry as native
from codtdq.engine.cpu import library
from codtdq.engine.cpu.encoders import Encoder
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.numerics import ActivationSpec
from codtdq.numerics import carry as carrier
from codtdq.numerics.carry import CarrySpec
from codtdq.schemes.lowered import LoweredInput
from codtdq.schemes.transforms import Transform

pytestmark = needs_engine


def check_groups(x, spec, asymmetric=False, per_image=False):
    """x: rows [N, C], read as such and as a map [1, C, N]."""
    unit_rows = max(x.shape[0], 1) if per_image else 1
    expected = carrier.carry_groups(x, spec, asymmetric=asymmetric, unit_rows=unit_rows)
    options = {"asymmetric": asymmetric, "per_image": per_image, "multipliers": True}

    def check(where):
        for view in (x, x.t().contiguous().unsqueeze(0)):
            found = native.carry_groups(view, engine_spec(spec), **options)
            check_carried(found, expected, (where, spec, options))

    everywhere(check)
    return expected


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("tau", "zero_ratio"), [(None, None), (1.0, 0.2), (0.3, None), (None, 0.6)]
)
def test_symmetric_groups(bits, tau, zero_ratio, per_image):
    for channels in (32, 96, 131):
        x = difficult(70, channels, seed=bits)
        if per_image:
            x = x.nan_to_num(0.0, 0.0, 0.0)
        check_groups(
            x, ActivationSpec(bits=bits, tau=tau, zero_ratio=zero_ratio), per_image=per_image
        )


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 7])
def test_asymmetric_groups(bits, per_image):
    for channels in (32, 64, 75):
        x = difficult(70, channels, seed=bits) + 0.5
        if per_image:
            x = x.nan_to_num(0.0, 0.0, 0.0)
        spec = ActivationSpec(bits=bits, tau=None, zero_ratio=None)
        check_groups(x, spec, asymmetric=True, per_image=per_image)


def test_bounds_lower_multipliers_and_never_raise_the_step():
    x = random(400, 64)
    x[::2, 3] = 30.0
    spec = ActivationSpec(tau=0.5, zero_ratio=0.6)
    found = check_groups(x, spec)
    free = check_groups(x, ActivationSpec(tau=None, zero_ratio=None))
    step = found.unit.unsqueeze(1) * found.multiplier
    projected = carrier.project(carrier.split(x, spec), spec)
    held = (projected.active > 0) & (found.multiplier > 1)
    assert held.any() and bool((step[held] <= projected.step[held] * (1 + 1e-6)).all())
    assert not torch.equal(found.values, free.values)


groups_of_any_kind = st.fixed_dictionaries(
    {
        "bits": st.integers(2, 8),
        "group_size": st.integers(1, 128),
        "tau": st.sampled_from([None, 0.3, 1.0]),
        "zero_ratio": st.sampled_from([None, 0.2, 0.7]),
        "percentile": st.sampled_from([None, 0.9]),
    }
)
readings = st.sampled_from([{}, {"projection": "guarded"}, {"literal": True}])


@bounded
@given(groups_of_any_kind, readings, st.integers(0, 40), st.integers(1, 300), st.integers(0, 99))
def test_any_groups(kind, reading, rows, channels, seed):
    check_groups(difficult(rows, channels, seed), ActivationSpec(**kind, **reading))


@bounded
@given(
    st.integers(2, 7), st.integers(1, 128), st.integers(0, 30), st.integers(1, 200), st.booleans()
)
def test_any_asymmetric_groups(bits, group, rows, channels, per_image):
    spec = ActivationSpec(bits=bits, group_size=group, tau=None, zero_ratio=None)
    check_groups(difficult(rows, channels, group), spec, asymmetric=True, per_image=per_image)


@pytest.mark.parametrize("value", SPECIAL)
def test_one_value_out_of_the_ordinary(value):
    x = random(20, 64)
    x[7, 40] = value
    for spec in (ActivationSpec(), ActivationSpec(tau=None, zero_ratio=None)):
        found = check_groups(x, spec)
        lost = found.unit.isnan()
        assert bool(lost[7]) is not math.isfinite(value) and int(lost.sum()) == int(lost[7])
        assert not found.values[7].any() or math.isfinite(value)


def test_rows_of_zeros_have_codes_of_zero():
    found = check_groups(torch.zeros(3, 40), ActivationSpec())
    assert not found.values.any() and bool((found.unit > 0).all())


def check_fixed(x, bits, step, zero=None, per_image=True):
    unit_rows = max(x.shape[0], 1) if per_image else 1
    expected = carrier.carry_fixed(x, bits, step, zero, unit_rows=unit_rows)

    def check(where):
        for view in (x, x.t().contiguous().unsqueeze(0)):
            found = native.carry_fixed(
                view, bits, step, zero, per_image=per_image, multipliers=True
            )
            check_carried(found, expected, (where, bits))

    everywhere(check)
    return expected


@bounded
@given(
    st.integers(2, 8),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 40),
    st.integers(1, 150),
)
def test_fixed_steps(bits, each, asymmetric, per_image, rows, channels):
    bits = min(bits, 7) if asymmetric and each else bits
    step = torch.exp(2 * random(channels if each else 1, seed=bits))
    zero = whole(0, 2**bits - 1, step.numel(), seed=1).int() if asymmetric else None
    check_fixed(difficult(rows, channels, bits), bits, step, zero, per_image)


def check_searched(x, how, positions, transform=None):
    """x: maps [B, C, N]; the engine against the reference, group by group."""
    tokens = x.transpose(1, 2)
    changed = tokens if transform is None else transform.tokens(tokens)
    with library.disabled():
        expected = carrier.carry(changed, how)
    form = LoweredInput(how, transform=None if transform is None else transform.for_rows())

    def check(where):
        for view in (x, x.contiguous()):
            found = Encoder(form).encode(view, multipliers=True)
            check_carried(found, expected, (where, how))

    everywhere(check)
    return expected


searched = st.builds(
    CarrySpec,
    bits=st.integers(2, 7),
    ranges=st.sampled_from(["group", "pixel"]),
    unit=st.just("image"),
    group=st.integers(1, 128),
    asymmetric=st.booleans(),
    trials=st.integers(1, 5),
    zero_weight=st.sampled_from([0.0, 0.0, 0.7]),
    bounds=st.none(),
)


@bounded
@given(searched, st.booleans(), st.integers(1, 2), st.integers(1, 40), st.integers(1, 150))
def test_any_tried_multipliers(how, own, images, positions, channels):
    if own:
        how = how._replace(unit="channel" if how.ranges == "pixel" else "token")
    rows = difficult(images * positions, channels, positions)
    x = rows.reshape(images, positions, channels).transpose(1, 2)
    check_searched(x, how, positions)
    check_searched(x.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4), how, positions)


@pytest.mark.parametrize("channels", [32, 70, 96])
def test_groups_behind_a_transform(channels):
    order = torch.randperm(channels, generator=torch.Generator().manual_seed(0))
    change = Transform(random(channels), random(channels).abs() + 0.2, order, True)
    x = random(2, channels, 33)
    for trials in (1, 3):
        how = CarrySpec(4, "group", "token", asymmetric=True, trials=trials)
        check_searched(x, how, 33, change)


def test_a_smaller_multiplier_wins_where_it_errs_less():
    x = random(1, 64, 400)
    x[:, 0] = 6.0
    first = check_searched(x, CarrySpec(4, "group", "token", asymmetric=True), 400)
    tried = check_searched(x, CarrySpec(4, "group", "token", asymmetric=True, trials=3), 400)
    assert torch.equal(first.unit, tried.unit)
    fewer = tried.multiplier < first.multiplier
    assert fewer.any() and not (tried.multiplier > first.multiplier).any()
    errors = [
        (c.decoded() - x[0].t()).square().unflatten(1, (2, 32)).sum(-1) for c in (first, tried)
    ]
    assert bool((errors[1] <= errors[0] * (1 + 1e-5)).all())
    assert float(errors[1][fewer].sum()) < float(errors[0][fewer].sum())


@pytest.mark.parametrize("size", [1e-12, 1e18, 1e37])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_tried_multipliers_of_any_size(size, asymmetric):
    """Where squared errors are infinite, no multiplier wins."""
    x = random(1, 96, 60) * size
    x[:, :32] *= 0.3
    how = CarrySpec(4, "group", "token", asymmetric=asymmetric, trials=2)
    check_searched(x, how, 60)


@pytest.mark.parametrize("projection", ["min", "guarded"])
def test_groups_with_many_values_near_zero(projection):
    """Behind GELU the zero bin bounds most groups, some of them with exact zeros."""
    x = torch.nn.functional.gelu(random(130, 160))
    x[::7, ::5] = 0.0
    found = check_groups(x, ActivationSpec(projection=projection))
    free = carrier.carry_groups(x, ActivationSpec(tau=None, zero_ratio=None))
    assert not torch.equal(found.multiplier, free.multiplier)


def test_eight_bits_with_a_zero_point_are_two_bytes():
    x = random(50, 3) * 40
    step, zero = torch.tensor([0.9]), torch.tensor([117])
    found = check_fixed(x, 8, step, zero)
    assert found.doubled and found.values.shape == (50, 6)
    wanted = ((x / step).round() + zero).clamp(0, 255) - zero
    assert torch.equal(found.decoded(), wanted * step)


def test_units_of_channels():
    x = difficult(30, 40)
    step = random(40).abs() + 0.01
    expected = carrier.carry_fixed(x, 4, step, unit_rows=30, own_units=True)

    def check(where):
        found = native.carry_fixed(x, 4, step, per_channel=True, multipliers=True)
        check_carried(found, expected, where)

    everywhere(check)
    assert expected.unit.shape == (1, 40) and 0 < int(expected.unit.isnan().sum()) < 40


def test_a_nan_step_spoils_everything():
    step = torch.tensor([1.0, math.nan, 2.0])
    found = check_fixed(random(5, 3), 4, step)
    assert bool(found.unit.isnan().all()) and not found.values.any()


def test_one_step_has_one_multiplier():
    found = check_fixed(random(50, 33), 8, torch.tensor([0.05]))
    assert found.multiplier.tolist() == [1] and float(found.unit[0]) == torch.tensor(0.05).item()


def test_steps_without_a_reciprocal_are_refused():
    with pytest.raises(ConfigError, match="accepted: finite, 1e-30"):
        carrier.carry_fixed(random(2, 3), 4, torch.tensor([1e-35]))
    with pytest.raises(UnsupportedError):
        native.carry_fixed(random(2, 3), 4, torch.tensor([1e-35]))
