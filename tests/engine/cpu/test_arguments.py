"""Arguments that do not fit: one line from every operator and every C function, and no crash."""

import os
import subprocess
import sys
from ctypes import byref

import pytest
import torch
from engine_cases import needs_engine
from test_operators import cases

from codtdq.engine.cpu import carriers, carry, library, products
from codtdq.engine.cpu.interface import Deform, Output, Quantized, QuantSpec
from codtdq.errors import UnsupportedError

pytestmark = needs_engine

# What another type, shape, number or layout makes of one argument. Run in a process of its own:
# an operator that believed them would end it.
WRONG = """
import math, sys
import torch
from test_operators import cases
from codtdq.errors import UnsupportedError

def tensors(value):
    for dtype in (torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8, torch.int32,
                  torch.float32, torch.bool, torch.complex64):
        if dtype is not value.dtype:
            yield "dtype", value.to(dtype)
    yield "shape", value[None]
    yield "shape", value.flatten()[:1].clone() if value.numel() > 1 else value.repeat(3)
    yield "shape", value.reshape(-1)[: value.numel() // 2].clone()
    yield "shape", value[..., :-1].contiguous()
    yield "shape", torch.cat([value, value[..., :1]], -1)
    yield "shape", value.new_zeros(())
    yield "shape", value.new_zeros(0)
    yield "layout", value.repeat_interleave(2, -1)[..., ::2]

def numbers(value):
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        wild = (1 << 20, 1 << 40, -(1 << 40))
        yield from ((f"{n}", n) for n in (-1, 0, value + 1, value * 7 + 1, *wild))
    elif isinstance(value, float):
        yield from ((f"{n}", n) for n in (-1.0, 3.0, math.nan, math.inf))
    elif isinstance(value, list):
        for n in (-1, 0, 1 << 20, 1 << 40):
            for at in range(len(value)):
                yield f"[{at}]={n}", value[:at] + [n] + value[at + 1 :]
        yield "longer", value + [1]
        yield "empty", []
    elif isinstance(value, str):
        yield "word", "sigmoid"
        yield "word", "gated_gelu"

name = sys.argv[1]
arguments = cases()[name]
operator = getattr(torch.ops.codtdq, name)
before = operator(*arguments)
refused = accepted = 0
for at, value in enumerate(arguments):
    changes = tensors(value) if isinstance(value, torch.Tensor) else numbers(value)
    for what, other in changes:
        given = (*arguments[:at], other, *arguments[at + 1 :])
        try:
            operator(*given)
        except UnsupportedError as error:
            text = str(error)
            assert "\\n" not in text and len(text) < 400, text
            assert text.startswith(f"codtdq::{name}") or at, (at, what, text)
            refused += 1
        except (RuntimeError, TypeError, MemoryError) as error:
            raise SystemExit(f"argument {at} {what}: {type(error).__name__}: {error}")
        else:
            accepted += 1
            # what an operator accepts in place of float32 memory without gaps is the same values
            assert what not in ("dtype",) or name == "carry_fixed" and at == 3, (at, what)
after = operator(*arguments)
for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (before, after))):
    assert torch.equal(one.nan_to_num(), other.nan_to_num())
print(refused, accepted)
"""


@pytest.mark.parametrize("name", list(cases()))
def test_an_operator_refuses_what_does_not_fit(name, pytestconfig):
    folder = pytestconfig.rootpath / "tests"
    paths = [str(folder), str(folder / "engine" / "cpu"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", WRONG, name],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert int(done.stdout.split()[0]) >= 10


def refused(code):
    assert code == 1  # COD_BAD_ARGUMENT


def changed(structure, **fields):
    """A copy of a structure with other numbers."""
    other = type(structure).from_buffer_copy(structure)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


LENGTHS = (-1, 0, 1)  # what a length of a buffer is lowered to, beside one less than it needs


def shorter(structure, *names):
    """Copies in which one length at a time is too small."""
    for name in names:
        for value in {*LENGTHS, getattr(structure, name) - 1}:
            yield changed(structure, **{name: value})


def test_rows_and_groups_believe_no_length():
    engine, x = library.engine(), torch.randn(6, 40)
    (view,) = products.token_views(x)
    spec = QuantSpec(4, 32, pre=0)
    x_hat, step = torch.empty(6, 40), torch.empty(6, 2)
    codes = torch.empty(6, 64, dtype=torch.int8)
    out = Quantized(
        codes.data_ptr(),
        64,
        step.data_ptr(),
        None,
        None,
        None,
        x_hat.data_ptr(),
        None,
        384,
        12,
        240,
    )
    call = engine.cod_quantize_groups
    assert call(byref(view), byref(spec), byref(out), 1) == 0
    for other in shorter(out, "code_bytes", "group_count", "value_count", "code_stride"):
        refused(call(byref(view), byref(spec), byref(other), 1))
    for other in shorter(view, "count"):
        refused(call(byref(other), byref(spec), byref(out), 1))
        refused(engine.cod_absmax(byref(other), 0, step.data_ptr(), 12, 1))
    for field in ("rows", "channels", "row_stride", "channel_stride"):
        for value in (-1, 1 << 40, 1 << 62):
            given = changed(view, **{field: value})
            refused(call(byref(given), byref(spec), byref(out), 1))
            refused(engine.cod_absmax(byref(given), 1, step.data_ptr(), 12, 1))
    refused(engine.cod_absmax(byref(view), 1, step.data_ptr(), 12, 1))
    for share in (-0.1, 1.1, float("nan")):
        wild = QuantSpec(4, 32, use_zero_ratio=1, zero_ratio=share)
        refused(call(byref(view), byref(wild), byref(out), 1))


def test_encoders_believe_no_length_and_no_index():
    engine, x = library.engine(), torch.randn(1, 40, 6)
    vector, order = torch.rand(40) + 0.5, torch.randperm(40).int()
    how = carry.carry.CarrySpec(4, "group", "token", 32, True, 2, 0.0)
    spec = carry.carry_spec(how, carry.RowTransform(vector, vector, order, False))
    out = carry._room(x, 40, False)
    ((view, given, _),) = carry._views(x, out)
    found = torch.empty(12, dtype=torch.uint8)
    carry._keep(given, found, 0)

    def call(view=view, spec=spec, given=given):
        return engine.cod_carry_tokens(byref(view), byref(spec), byref(given), 1)

    assert call() == 0
    for other in shorter(given, "bytes", "unit_count", "multiplier_count", "stride"):
        refused(call(given=other))
        if other.multiplier_count == 12:
            assert engine.cod_carry_pixels(byref(view), byref(spec), byref(other), 1) == 1
    for other in shorter(view, "count"):
        refused(call(view=other))
    for other in shorter(spec, "count"):
        refused(call(spec=other))
    plain = changed(given, multiplier=None)
    assert engine.cod_carry_pixels(byref(view), byref(spec), byref(plain), 1) == 0
    for other in shorter(spec, "count"):
        refused(engine.cod_carry_pixels(byref(view), byref(other), byref(plain), 1))
    for index in (-1, 40, 1 << 30):
        order[7] = index
        refused(call())
        refused(engine.cod_carry_pixels(byref(view), byref(spec), byref(plain), 1))
    assert engine.cod_carrier_depth((1 << 63) - 1) == (1 << 63) - 1


def test_fixed_steps_believe_no_number_of_channels():
    """Under UBSan, too: twice a number far below zero is no number."""
    engine, x = library.engine(), torch.randn(1, 40, 6)
    step, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    out = carry._room(x, 80, False)
    ((view, given, _),) = carry._views(x, out)

    def call(view):
        pointers = step.data_ptr(), zero.data_ptr()
        return engine.cod_carry_fixed(byref(view), 8, *pointers, 1, 0, byref(given), 1)

    assert call(view) == 0
    for channels in (0, -1, -(1 << 62), -(1 << 62) - 1, -(1 << 63), 41, 1 << 62):
        refused(call(changed(view, channels=channels)))


def test_products_believe_no_length():
    engine = library.engine()
    weights = carriers.CarrierWeights.pack(
        torch.randint(-8, 8, (24, 9, 40), dtype=torch.int8), torch.rand(24)
    )
    x = carry.carry_fixed(torch.randn(2, 40, 5, 6), 4, torch.ones(1))
    window = products.Window((2, 5, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    y, bias = torch.empty(window.rows, 24), torch.randn(24)
    given, out = carriers._input(x, x.data), carriers._output(y, bias, "none")

    def call(given=given, geometry=window.geometry(), packed=weights.described, out=out):
        return engine.cod_carrier_conv(byref(given), byref(geometry), byref(packed), byref(out), 1)

    assert call() == 0
    for other in shorter(given, "bytes", "unit_count"):
        refused(call(given=other))
    for other in shorter(out, "count", "bias_count", "row_stride"):
        refused(call(out=other))
    sizes = ("outputs", "taps", "inputs", "depth", "panels", "panel_bytes", "packed_bytes")
    for field in (*sizes, "multiplier_bytes", "factor_count", "group", "run", "columns", "bits"):
        for value in (-1, 1 << 20) if field in ("outputs", "panels") else (-1, 1, 1 << 20):
            refused(call(packed=changed(weights.described, **{field: value})))
    for field in ("batch", "in_h", "in_w", "out_h", "out_w"):
        for value in (-1, 1 << 30, 1 << 61):
            refused(call(geometry=changed(window.geometry(), **{field: value})))


def test_depthwise_and_deform_believe_no_length():
    engine = library.engine()
    x = carry.carry_fixed(torch.randn(2, 40, 5, 6), 4, torch.ones(1))
    window = products.Window((2, 5, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    taps, factor = torch.ones(9, 40, dtype=torch.int8), torch.ones(40)
    y = torch.empty(window.rows, 40)
    given, out = carriers._input(x, x.data), carriers._output(y, factor, "none")
    for counts, code in (((360, 40), 0), ((359, 40), 1), ((360, 39), 1), ((-1, 40), 1)):
        weight = (taps.data_ptr(), counts[0], factor.data_ptr(), counts[1])
        found = engine.cod_carrier_depthwise(
            byref(given), byref(window.geometry()), 40, *weight, byref(out), 1
        )
        assert found == code, counts
    maps, offsets = torch.randn(2, 5, 6, 40), torch.zeros(2, 18, 5, 6)
    packed = products.float_panels(torch.randn(360, 7))
    y = torch.empty(60, 7)
    shape = Deform(2, 5, 6, 40, *offsets.stride(), maps.numel(), offsets.numel())
    out = Output(y.data_ptr(), 7, None, 0, y.numel(), 0)

    def call(shape=shape, count=packed.numel(), outputs=7, out=out):
        pointers = (maps.data_ptr(), offsets.data_ptr(), byref(shape), packed.data_ptr())
        return engine.cod_deform_conv(*pointers, count, outputs, byref(out), 1)

    assert call() == 0
    for other in shorter(shape, "map_count", "offset_count"):
        refused(call(shape=other))
    for other in shorter(out, "count", "row_stride"):
        refused(call(out=other))
    for count, outputs in ((packed.numel() - 1, 7), (packed.numel(), 200), (-1, 7), (0, 7)):
        refused(call(count=count, outputs=outputs))
    for field in ("batch", "height", "width", "channels", "offset_row", "offset_channel"):
        for value in (-1, 1 << 30, 1 << 61):
            refused(call(shape=changed(shape, **{field: value})))


def test_weights_believe_no_length():
    engine, weight = library.engine(), torch.randn(40, 7)
    room = torch.empty(engine.cod_float_packed(40, 7))
    for count, size, code in ((280, room.numel(), 0), (279, room.numel(), 1), (280, 3, 1)):
        found = engine.cod_float_pack(weight.data_ptr(), count, 40, 7, 7, 1, room.data_ptr(), size)
        assert found == code
    again = torch.empty(40, 7)
    for size, count, code in ((room.numel(), 280, 0), (3, 280, 1), (room.numel(), 279, 1)):
        found = engine.cod_float_unpack(room.data_ptr(), size, 40, 7, again.data_ptr(), count)
        assert found == code
    assert torch.equal(again, weight)
    for depth, outputs in ((1 << 40, 1 << 40), (1 << 62, 3), (-1, 7), (40, 0)):
        assert engine.cod_float_packed(depth, outputs) == 0
        refused(
            engine.cod_float_pack(
                weight.data_ptr(), 280, depth, outputs, 0, 0, room.data_ptr(), room.numel()
            )
        )
    packed = carriers.CarrierWeights.pack(
        torch.randint(-8, 8, (24, 9, 40), dtype=torch.int8), torch.rand(24)
    )
    codes, factor = torch.empty(24 * 9 * 40, dtype=torch.int8), torch.empty(24)
    for lengths, code in (((8640, 24), 0), ((8639, 24), 1), ((8640, 23), 1), ((-1, 24), 1)):
        found = engine.cod_carrier_weight_unpack(
            byref(packed.described),
            codes.data_ptr(),
            lengths[0],
            None,
            0,
            factor.data_ptr(),
            lengths[1],
        )
        assert found == code, lengths
    nibbles, factor = torch.zeros(24, 180, dtype=torch.uint8), torch.rand(24)
    for lengths, code in (((4320, 24), 0), ((4319, 24), 1), ((4320, 23), 1), ((-1, 24), 1)):
        found = engine.cod_carrier_weight_pack_nibbles(
            nibbles.data_ptr(),
            lengths[0],
            None,
            0,
            factor.data_ptr(),
            lengths[1],
            byref(packed.described),
            1,
        )
        assert found == code, lengths
    wide = carriers.CarrierWeights.pack(torch.ones(4, 1, 64), torch.ones(4), bits=8)
    refused(
        engine.cod_carrier_weight_pack_nibbles(
            nibbles.data_ptr(), 4320, None, 0, factor.data_ptr(), 24, byref(wide.described), 1
        )
    )
    with pytest.raises(UnsupportedError, match="multipliers"):
        carriers.CarrierWeights.pack(
            torch.ones(4, 1, 64, dtype=torch.int8), torch.ones(4), torch.ones(4, 1, 1), group=32
        )
