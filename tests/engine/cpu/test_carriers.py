"""Carriers: the kernels give the bits of the reference, with every set and number of threads."""

import itertools
import math

import pytest
import torch
from engine_cases import SETS, instruction_set, needs_engine, torch_threads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codtdq.engine.cpu import carriers as native
from codtdq.engine.cpu import library
from codtdq.engine.cpu.operators import quant_spec
from codtdq.engine.cpu.products import Window
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.numerics import ActivationSpec, carrier

pytestmark = needs_engine
bounded = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SPECIAL = [0.0, 1e-40, 1e-12, 1e30, 3e38, math.nan, math.inf, -math.inf]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(low, high, *shape, seed=0):
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed))


def difficult(rows, channels, seed=0):
    """Ordinary rows of many sizes among rows of every other kind."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, generator=generator)
    x = x * torch.exp(2 * torch.randn(rows, 1, generator=generator))
    x = x * torch.exp(torch.randn(1, channels, generator=generator))
    kinds = [
        lambda row: row.zero_(),
        lambda row: row.fill_(1.5),
        lambda row: row[::3].zero_(),
        lambda row: row.relu_(),
        lambda row: row.mul_(1e-9),
        lambda row: row[:1].fill_(1000.0),
        lambda row: row.copy_((row * 4).round() / 4),
        lambda row: row.mul_(1e-40),
        lambda row: row.add_(1000.0),
        lambda row: row[:1].fill_(math.nan),
        lambda row: row[-1:].fill_(-math.inf),
        lambda row: row[-1:].fill_(3e38),
    ]
    for index, change in enumerate(kinds):
        if 2 * index < rows:
            change(x[2 * index])
    return x


def engine_spec(spec):
    return quant_spec(
        spec.bits,
        spec.group_size,
        spec.literal,
        spec.projection == "guarded",
        spec.percentile,
        spec.tau,
        spec.zero_ratio,
    )


def same(a, b):
    return torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)) and torch.equal(a.isnan(), b.isnan())


def everywhere(check):
    for name, threads in itertools.product(SETS, (1, 2)):
        with instruction_set(name), torch_threads(threads):
            check(f"{name}, {threads} threads")


def check_carried(found, expected, where):
    channels = expected.values.shape[1]
    assert same(found.unit, expected.unit), where
    assert torch.equal(found.multiplier, expected.multiplier), where
    assert torch.equal(found.data[:, :channels], expected.values), where
    assert not found.data[:, channels:].any(), where
    assert found.unit_rows == expected.unit_rows, where


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
    bits = min(bits, 7) if asymmetric else bits
    step = torch.exp(2 * random(channels if each else 1, seed=bits))
    zero = whole(0, 2**bits - 1, step.numel(), seed=1).int() if asymmetric else None
    check_fixed(difficult(rows, channels, bits), bits, step, zero, per_image)


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


# ---------------------------------------------------------------- products


def weights_of(outputs, taps, inputs, group, bits, seed=0):
    """codes, multipliers or None, factors."""
    if bits == 8:
        return whole(-127, 127, outputs, taps, inputs, seed=seed), None, random(outputs)
    codes = whole(-8, 7, outputs, taps, inputs, seed=seed)
    multiplier = None
    if group != 0:
        multiplier = whole(1, 15, outputs, taps, -(-inputs // group), seed=seed + 1)
        multiplier = multiplier * (2 * whole(0, 1, *multiplier.shape, seed=seed + 2) - 1)
    return codes, multiplier, random(outputs, seed=seed + 3)


def bytes_of(rows, channels, unit_rows, seed=0):
    """Carriers of any values, extreme ones among them."""
    data = whole(-127, 127, rows, channels, seed=seed).to(torch.int8)
    data[::5] = 127
    data[1::7] = -127
    unit = random(-(-rows // unit_rows), seed=seed).abs()
    padded = torch.zeros(rows, native.depth_of(channels), dtype=torch.int8)
    padded[:, :channels] = data
    multiplier = torch.ones(1, dtype=torch.uint8)
    return (
        native.Carriers(padded, unit, unit_rows),
        carrier.Carried(data, unit, multiplier, unit_rows),
    )


def check_linear(rows, channels, outputs, group, bits, with_bias, seed=0):
    found_x, x = bytes_of(rows, channels, 1, seed)
    if rows > 3:
        x.unit[3] = math.nan
    codes, multiplier, factor = weights_of(outputs, 1, channels, group, bits, seed)
    bias = random(outputs, seed=9) if with_bias else None
    expected = carrier.linear(
        x, carrier.whole_weight(codes, multiplier, group or None), factor, bias
    )

    def check(where):
        packed = native.CarrierWeights.pack(
            codes, factor, multiplier, group=group or None, bits=bits
        )
        found = native.carrier_product(found_x, packed, Window((1, 1, rows)), bias)
        assert same(found, expected), (where, rows, channels, outputs, group, bits)

    everywhere(check)


@bounded
@given(
    st.integers(0, 60),
    st.integers(1, 300),
    st.integers(1, 100),
    st.sampled_from([0, 16, 32, 48, 64, 512]),
    st.sampled_from([4, 4, 8]),
    st.booleans(),
)
def test_any_linear(rows, channels, outputs, group, bits, with_bias):
    check_linear(rows, channels, outputs, group if bits == 4 else 0, bits, with_bias)


@pytest.mark.parametrize("bits", [4, 8])
def test_long_sums_are_exact(bits):
    rows, channels = 7, 40_000
    found_x, x = bytes_of(rows, channels, 1)
    codes = torch.full((2, 1, channels), -8 if bits == 4 else -127)
    multiplier = torch.full((2, 1, 1), 15) if bits == 4 else None
    factor = torch.ones(2)
    expected = carrier.linear(x, carrier.whole_weight(codes, multiplier, None), factor)

    def check(where):
        packed = native.CarrierWeights.pack(codes, factor, multiplier, bits=bits)
        assert same(native.carrier_product(found_x, packed, Window((1, 1, rows))), expected), where

    everywhere(check)
    assert float(expected.abs().max()) > 1e8


def test_large_products_in_many_blocks():
    check_linear(1000, 384, 200, 32, 4, True)
    check_linear(500, 1100, 130, 64, 4, False)
    check_linear(400, 700, 70, 0, 8, True)


window_sides = st.tuples(st.integers(1, 3), st.integers(1, 3))


@bounded
@given(
    st.integers(1, 2),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window_sides,
    window_sides,
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    window_sides,
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from([0, 16, 32]),
    st.sampled_from([4, 8]),
)
def test_any_convolution(
    batch, size, kernel, stride, padding, dilation, channels, outputs, group, bits
):
    window = Window((batch, *size), kernel, stride, padding, dilation)
    if min(window.out) < 1:
        return
    taps, pixels = kernel[0] * kernel[1], size[0] * size[1]
    group = group if bits == 4 else 0
    found_x, x = bytes_of(batch * pixels, channels, pixels)
    codes, multiplier, factor = weights_of(outputs, taps, channels, group, bits)
    bias = random(outputs, seed=9)
    expected = carrier.convolution(
        x,
        (batch, *size),
        carrier.whole_weight(codes, multiplier, group or None),
        kernel,
        factor,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
    )

    def check(where):
        packed = native.CarrierWeights.pack(
            codes, factor, multiplier, group=group or None, bits=bits
        )
        found = native.carrier_product(found_x, packed, window, bias)
        assert same(found, expected), (where, window, channels, outputs, group, bits)

    everywhere(check)


@bounded
@given(
    st.integers(1, 2),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([(1, 1), (3, 3), (7, 7), (1, 5)]),
    window_sides,
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(1, 70),
    st.booleans(),
)
def test_any_depthwise(batch, size, kernel, stride, padding, channels, with_bias):
    window = Window((batch, *size), kernel, stride, padding)
    if min(window.out) < 1:
        return
    taps, pixels = kernel[0] * kernel[1], size[0] * size[1]
    found_x, x = bytes_of(batch * pixels, channels, pixels)
    weight, factor = whole(-127, 127, taps, channels), random(channels)
    bias = random(channels, seed=9) if with_bias else None
    expected = carrier.convolution(
        x,
        (batch, *size),
        weight.t().unsqueeze(2),
        kernel,
        factor,
        bias,
        stride=stride,
        padding=padding,
        groups=channels,
    )

    def check(where):
        found = native.carrier_depthwise(found_x, weight, factor, window, bias)
        assert same(found, expected), (where, window, channels)

    everywhere(check)


def test_a_convolution_in_groups():
    window = Window((2, 5, 6), (3, 3), (1, 1), (1, 1))
    found_x, x = bytes_of(60, 64, 30)
    codes, _, factor = weights_of(24, 9, 32, 0, 4)
    expected = carrier.convolution(
        x, (2, 5, 6), codes, (3, 3), factor, None, padding=(1, 1), groups=2
    )

    def check(where):
        parts = [
            native.CarrierWeights.pack(codes[at : at + 12], factor[at : at + 12]) for at in (0, 12)
        ]
        assert same(native.grouped_carrier_product(found_x, parts, window), expected), where

    everywhere(check)


def test_activations_follow_the_product():
    found_x, x = bytes_of(40, 64, 1)
    codes, multiplier, factor = weights_of(50, 1, 64, 32, 4)
    factor = factor * 1e-5
    y = carrier.linear(x, carrier.whole_weight(codes, multiplier, 32), factor)
    packed = native.CarrierWeights.pack(codes, factor, multiplier, group=32)
    window = Window((1, 1, 40))
    assert same(native.carrier_product(found_x, packed, window, None, "relu"), y.relu())
    found = native.carrier_product(found_x, packed, window, None, "gelu")
    assert torch.allclose(found, torch.nn.functional.gelu(y), atol=1e-5)


def test_one_tap_with_a_unit_for_each_pixel():
    """Strides read other pixels, and their units."""
    window = Window((2, 5, 7), (1, 1), (2, 3))
    found_x, x = bytes_of(70, 40, 1)
    codes, multiplier, factor = weights_of(20, 1, 40, 16, 4)
    rows = torch.arange(70).reshape(2, 5, 7)[:, ::2, ::3].flatten()
    picked = carrier.Carried(x.values[rows], x.unit[rows], x.multiplier, 1)
    expected = carrier.linear(picked, carrier.whole_weight(codes, multiplier, 16), factor)
    packed = native.CarrierWeights.pack(codes, factor, multiplier, group=16)
    assert same(native.carrier_product(found_x, packed, window), expected)


def test_weights_keep_their_bits():
    codes, multiplier, factor = weights_of(256, 1, 512, 32, 4)
    packed = native.CarrierWeights.pack(codes, factor, multiplier, group=32)
    assert packed.bytes == 256 * 512 * 4.25 / 8 + 4 * 256


def test_what_does_not_fit_is_refused():
    codes, multiplier, factor = weights_of(8, 1, 64, 32, 4)
    pack = native.CarrierWeights.pack
    with pytest.raises(UnsupportedError, match="multiple of 16"):
        pack(codes, factor, whole(1, 15, 8, 1, 3), group=24)
    with pytest.raises(UnsupportedError, match=r"accepted: \(8, 1, 2\)"):
        pack(codes, factor, multiplier[..., :1], group=32)
    with pytest.raises(UnsupportedError, match="out of range"):
        pack(codes, factor, multiplier * 0, group=32)
    with pytest.raises(UnsupportedError, match="out of range"):
        pack(codes + 8, factor, multiplier, group=32)
    with pytest.raises(UnsupportedError, match="no multipliers at 8 bits"):
        pack(codes, factor, multiplier, group=32, bits=8)
    with pytest.raises(UnsupportedError, match="130000"):
        pack(whole(0, 1, 1, 9, 15_000), factor[:1])
    x, _ = bytes_of(30, 64, 1)
    with pytest.raises(UnsupportedError):  # nine taps, a unit for each pixel
        taps = whole(-8, 7, 8, 9, 64)
        native.carrier_product(x, pack(taps, factor), Window((1, 5, 6), (3, 3)))
    with pytest.raises(ConfigError, match="2 to 7"):
        carrier.most_multiplier(8, asymmetric=True)


def test_weights_belong_to_their_set():
    codes, multiplier, factor = weights_of(8, 1, 64, 32, 4)
    x, _ = bytes_of(3, 64, 1)
    with instruction_set("generic"):
        packed = native.CarrierWeights.pack(codes, factor, multiplier, group=32)
    if library.instruction_set() != "generic":
        with pytest.raises(UnsupportedError, match="packed for generic"):
            native.carrier_product(x, packed, Window((1, 1, 3)))


def test_a_set_that_cannot_run_says_why():
    for name in ("amx-int8", "avx-vnni", "avx2", "no-such-set"):
        if name in SETS:
            assert library.refusal(name) is None
            continue
        reason = library.refusal(name)
        assert reason and "\n" not in reason
        with pytest.raises(UnsupportedError, match=f"cannot run here: {reason}"):
            library.select(name)
    assert library.refusal("no-such-set") == "the library was built without it"
