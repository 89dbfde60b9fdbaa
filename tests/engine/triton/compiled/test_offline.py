"""Every kernel at its shipped block sizes, compiled to machine code for GPUs that are not here."""

from dataclasses import fields

import gpu_cases
import pytest
import torch

from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import products, tables
from codtdq.engine.triton.launch import Launch, recorded
from codtdq.engine.triton.offline import compile_for
from codtdq.engine.triton.weights import GpuWeights
from codtdq.schemes.lowered import LoweredWeight

pytestmark = gpu_cases.compiled

CAPABILITIES = (80, 89, 90)


def _carriers(rows, channels, images=0, own=False):
    shape = (images, channels) if own else (images or rows,)
    data = torch.empty(rows, channels, dtype=torch.int8, device="meta")
    return Carriers(data, torch.empty(shape, device="meta"), rows if images else 1)


def _weights(outputs, taps, inputs, group=None, bits=4):
    codes = torch.zeros(outputs, taps, inputs, dtype=torch.int8)
    p = None
    if group is not None:
        p = torch.ones(outputs, taps, -(-inputs // group), dtype=torch.int8)
    weight = LoweredWeight(codes, torch.ones(outputs), p, group, bits)
    return GpuWeights.pack(weight, weight.factor)


def _shape(least_rows, least_outputs):
    """A shape that takes the row of a table with these limits."""
    return max(least_rows, 16), max(least_outputs, 16)


def _product(rows, outputs, mode):
    bias = torch.empty(outputs, device="meta")
    window, x, weights = Window((1, 1, rows)), _carriers(rows, 256), None
    if mode == "3x3":
        window = Window((1, 1, rows), (3, 3), (1, 1), (1, 1))
        x, weights = _carriers(rows, 256, 1), _weights(outputs, 9, 256, 32)
    if mode == "groups":
        weights = _weights(outputs, 1, 256, 32)
    if mode == "bytes":
        weights = _weights(outputs, 1, 256, bits=8)
    if weights is None:
        weights = _weights(outputs, 1, 256)
    products.product(x, weights, window, bias, "gelu")


def _depthwise(rows, channels, own):
    x, taps = _carriers(rows, channels, 1, own), torch.empty(9, channels, dtype=torch.int8)
    window = Window((1, 1, rows), (3, 3), (1, 1), (1, 1))
    products.depthwise(
        x, taps.to("meta"), torch.empty(channels, device="meta"), window, None, "gelu"
    )


def _cases():
    """(name, function that launches it) for every row of every table."""
    for rows, outputs, block in tables.PRODUCT:
        for mode in ("plain", "groups", "3x3", "bytes"):
            shape = _shape(rows, outputs)
            yield f"{mode} {block.m}x{block.n}", lambda s=shape, m=mode: _product(*s, m)
    for rows, channels, block in tables.DEPTHWISE:
        for own in (True, False):
            yield (
                f"depthwise {block.m}x{block.n} {'units of channels' if own else 'one unit'}",
                (lambda s=_shape(rows, channels), o=own: _depthwise(*s, o)),
            )


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
    """A dot over 32 channels of 16 x 8 outputs is one m16n8k32."""
    with recorded() as launches:
        _product(8192, 128, "plain")
    built = compile_for(launches[-1], 89)
    assert "mma.sync.aligned.m16n8k32.row.col" in built.ptx
    block = launches[-1].block
    tiles = block.m * block.n // (16 * 8) // block.warps
    assert built.tensor_core % tiles == 0 and built.tensor_core >= block.slabs * tiles


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
    shipped = {block for table in (tables.PRODUCT, tables.DEPTHWISE) for _, _, block in table}
    assert len(survey.launches) > 0.9 * len(survey.operators)  # a few are never called
    for launches in survey.launches.values():
        assert {started.block for started in launches} <= shipped
