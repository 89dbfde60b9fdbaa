"""Products of carriers give the bits of the reference, with every set and number of threads."""

import math

import pytest
import torch
from carrier_cases import bounded, everywhere, random, whole
from engine_cases import SETS, instruction_set, needs_engine, same
from hypothesis import given
from hypothesis import strategies as st

from codtdq.engine.cpu import carriers as native
from codtdq.engine.cpu import library
from codtdq.engine.cpu.products import Window
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.numerics import carrier
from codtdq.numerics.packing import Nibbles, pack

pytestmark = needs_engine


def pads_of(padding):
    """As `convolution` takes it: left, right, top, bottom."""
    return (padding[1], padding[1], padding[0], padding[0])


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


@bounded
@given(
    st.integers(1, 70),
    st.integers(1, 9),
    st.integers(1, 150),
    st.sampled_from([0, 16, 32, 48, 512]),
)
def test_nibbles_are_packed_as_bytes_are(outputs, taps, inputs, group):
    """An odd number of taps and inputs among them, whose rows end in half a byte."""
    codes, multiplier, factor = weights_of(outputs, taps, inputs, group, 4)
    rows = pack(codes.to(torch.int8).flatten(1), 4)
    nibbles = Nibbles(rows, (outputs, taps, inputs))
    assert torch.equal(nibbles.codes(), codes.to(torch.int8))

    def check(where):
        wanted, found = (
            native.CarrierWeights.pack(held, factor, multiplier, group=group or None)
            for held in (codes, nibbles)
        )
        for part in ("packed", "multiplier", "factor"):
            assert torch.equal(getattr(found, part), getattr(wanted, part)), (where, part)

    everywhere(check)


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
    expected, _ = carrier.convolution(
        x,
        (batch, *size),
        carrier.whole_weight(codes, multiplier, group or None),
        kernel,
        factor,
        bias,
        stride=stride,
        pads=pads_of(padding),
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
    st.booleans(),
)
def test_any_depthwise(batch, size, kernel, stride, padding, channels, with_bias, own):
    window = Window((batch, *size), kernel, stride, padding)
    if min(window.out) < 1:
        return
    taps, pixels = kernel[0] * kernel[1], size[0] * size[1]
    found_x, x = bytes_of(batch * pixels, channels, pixels)
    if own:
        unit = random(batch, channels, seed=3).abs()
        found_x, x = found_x._replace(unit=unit), x._replace(unit=unit)
    weight, factor = whole(-127, 127, taps, channels), random(channels)
    bias = random(channels, seed=9) if with_bias else None
    expected, _ = carrier.convolution(
        x,
        (batch, *size),
        weight.t().unsqueeze(2),
        kernel,
        factor,
        bias,
        stride=stride,
        pads=pads_of(padding),
        groups=channels,
    )

    def check(where):
        found = native.carrier_depthwise(found_x, weight, factor, window, bias)
        assert same(found, expected), (where, window, channels)

    everywhere(check)


@pytest.mark.parametrize("channels", [32, 5, 40])
def test_a_convolution_in_groups(channels):
    window = Window((2, 5, 6), (3, 3), (1, 1), (1, 1))
    found_x, x = bytes_of(60, 2 * channels, 30)
    codes, _, factor = weights_of(24, 9, channels, 0, 4)
    expected, _ = carrier.convolution(
        x, (2, 5, 6), codes, (3, 3), factor, None, pads=pads_of((1, 1)), groups=2
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
