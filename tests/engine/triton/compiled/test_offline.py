"""Every kernel at its shipped block sizes, compiled to machine code for GPUs that are not here."""

from dataclasses import fields

import gpu_cases
import pytest
import torch

from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import encoders, products, tables
from codtdq.engine.triton.launch import Launch, launch, recorded
from codtdq.engine.triton.offline import compile_for
from codtdq.engine.triton.weights import GpuWeights
from codtdq.numerics.spec import ActivationSpec

pytestmark = gpu_cases.compiled

CAPABILITIES = (80, 89, 90)
PAPER = ActivationSpec()
GUARDED = ActivationSpec(projection="guarded")


def _x(rows, channels):
    return torch.empty(rows, channels, device="meta")


def _weights(outputs, taps, inputs, per=None):
    codes = torch.zeros(outputs, taps, inputs, dtype=torch.int8)
    count = 1 if per is None else taps * -(-inputs // per)
    return GpuWeights.pack(codes, torch.ones(outputs, count), 32, per)


def _shape(least_rows, least_outputs):
    """A shape that takes the row of a table with these limits."""
    return max(least_rows, 16), max(least_outputs, 16)


def _product(rows, outputs, mode):
    window = Window((1, 1, rows))
    weights, bias = _weights(outputs, 1, 256), torch.empty(outputs, device="meta")
    if mode == "3x3":
        window = Window((1, 1, rows), (3, 3), (1, 1), (1, 1))
        weights = _weights(outputs, 9, 256)
    if mode == "weight groups":
        weights = _weights(outputs, 1, 256, 64)
    x = _x(rows, 256)
    if mode == "shared":
        codes = encoders.encode_fixed(x, 4, torch.ones(1), torch.ones(1))
    else:
        codes = encoders.encode_groups(x, PAPER, zero_point=mode == "zero-points")
    products.product(codes, weights, window, bias, "gelu")


def _cases():
    """(name, function that launches it) for every row of every table."""
    for rows, outputs, block in tables.PRODUCT:
        shape = _shape(rows, outputs)
        yield f"linear {block.m}x{block.n}", lambda s=shape: _product(*s, "groups")
        yield f"conv {block.m}x{block.n}", lambda s=shape: _product(*s, "3x3")
    top = _shape(*tables.PRODUCT[0][:2])
    yield "linear, zero-points", lambda: _product(*top, "zero-points")
    yield "linear, weight groups", lambda: _product(*top, "weight groups")
    for rows, outputs, block in tables.SHARED_PRODUCT:
        shape = _shape(rows, outputs)
        yield f"shared {block.m}x{block.n}", lambda s=shape: _product(*s, "shared")
    for rows, outputs, block in tables.FUSED:
        shape = _shape(rows, outputs)
        for name, spec in (("paper", PAPER), ("guarded", GUARDED)):
            yield (
                f"fused {block.m}x{block.n} {name}",
                lambda s=shape, q=spec: products.fused_linear(
                    _x(s[0], 256), q, _weights(s[1], 1, 256), None, "none"
                ),
            )
    for rows, channels, block in tables.DEPTHWISE:
        for grouped in (True, False):
            yield (
                f"depthwise {block.m}x{block.n} {'groups' if grouped else 'shared'}",
                (lambda s=_shape(rows, channels), g=grouped: _depthwise(*s, g)),
            )
    for rows, _, block in tables.GROUPS:
        for name, spec in (("paper", PAPER), ("guarded", GUARDED)):
            yield (
                f"quantizer {block.m} {name}",
                (lambda r=max(rows, 4), q=spec: encoders.encode_groups(_x(r, 32), q)),
            )
    yield (
        "quantizer of maps",
        lambda: encoders.encode_groups(torch.empty(4, 64, 96, device="meta"), PAPER),
    )
    yield (
        "quantizer, zero-points",
        lambda: encoders.encode_groups(_x(64, 64), PAPER, zero_point=True),
    )
    for per_channel in (False, True):
        name = f"one range per {'channel' if per_channel else 'tensor'}"
        yield f"largest magnitude, {name}", lambda p=per_channel: _dynamic(p, 0)
        yield f"quantizer, {name}", lambda p=per_channel: _dynamic(p, 1)
    yield (
        "quantizer, a given range",
        lambda: encoders.encode_fixed(_x(64, 64), 4, torch.ones(1), torch.ones(1), checked=True),
    )
    yield (
        "quantizer, groups of 128",
        lambda: encoders.encode_groups(_x(64, 256), ActivationSpec(group_size=128)),
    )


def _dynamic(per_channel, place):
    """One of the two kernels behind a range that tokens share."""
    with recorded() as launches:
        encoders.encode_dynamic(_x(64, 64), 4, per_channel=per_channel)
    one = launches[place]
    launch(one.kernel, one.grid, one.arguments, one.constants, one.block)


def _depthwise(rows, channels, grouped):
    x = _x(rows, channels)
    if grouped:
        codes = encoders.encode_groups(x, PAPER)
    else:
        codes = encoders.encode_fixed(x, 4, torch.ones(channels), torch.ones(channels))
    taps = torch.empty(9, channels, device="meta")
    codes = codes._replace(step=codes.step.to("meta"))
    products.depthwise(codes, taps, Window((1, 1, rows), (3, 3), (1, 1), (1, 1)), None, "gelu")


CASES = dict(_cases())


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills(name, capability):
    with recorded() as launches:
        CASES[name]()
    started = launches[-1]
    built = compile_for(started, capability)
    assert built.cubin[:4] == b"\x7fELF"
    assert built.spilled == 0, f"{built.registers} registers, {built.spilled} bytes spilled"
    assert built.fits, f"{built.shared} bytes of shared memory"
    if "packed" in started.arguments:
        assert built.tensor_core > 0


def test_a_slab_is_one_instruction():
    """A dot over 32 channels of 16 x 8 outputs is one m16n8k32: 16 of them fill a warp's tile."""
    with recorded() as launches:
        _product(8192, 128, "groups")
    built = compile_for(launches[-1], 89)
    assert "mma.sync.aligned.m16n8k32.row.col" in built.ptx
    block = launches[-1].block
    assert built.tensor_core == block.m * block.n // (16 * 8) // block.warps


class _Tight(Launch):
    @property
    def options(self):
        return super().options | {"maxnreg": 32}


def test_a_spill_would_be_seen():
    """The check can fail: a product held to 32 registers does spill."""
    with recorded() as launches:
        _product(8192, 128, "groups")
    tight = _Tight(*(getattr(launches[-1], field.name) for field in fields(Launch)))
    assert compile_for(tight, 89).spilled > 0


@pytest.mark.parametrize("name", ["cfrn", "escnet", "cfrn-small", "escnet-small"])
@pytest.mark.parametrize("preset", ["w4a4", "cod-tdq-per-tensor-conv"])
def test_every_operator_of_the_models_has_a_kernel_and_a_block(name, preset):
    from codtdq.lab.bench.speed.gpu_layers import quantized_survey

    survey = quantized_survey(name, 4, preset)
    assert not survey.fallbacks
    shipped = {
        block
        for table in (
            tables.PRODUCT,
            tables.SHARED_PRODUCT,
            tables.FUSED,
            tables.DEPTHWISE,
            tables.GROUPS,
            tables.FIXED,
            tables.LARGEST,
        )
        for _, _, block in table
    }
    assert len(survey.launches) > 0.9 * len(survey.operators)  # a few are never called
    for launches in survey.launches.values():
        assert {started.block for started in launches} <= shipped
