"""Code that was changed at random is refused, or runs inside of its memory; it never crashes."""

import subprocess
import sys
from ctypes import c_int64

import pytest
import torch
from program_cases import Applied

from codtdq.engine import cpu
from codtdq.engine.cpu import library
from codtdq.engine.program.program import Program

BAD_ARGUMENT = 1
pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="no native engine")

MUTATIONS = """
import ctypes, random, sys
import torch
import torch.nn.functional as F
from torch import nn
import codtdq
from codtdq.engine.cpu import library
from codtdq.engine.program.program import Program

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.deep = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, groups=16)
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 24)

    def forward(self, x):
        y = F.gelu(self.deep(F.relu(self.conv(x))))
        y = torch.cat([y, F.avg_pool2d(y, 3, 1, 1)], 1)[:, 8:24]
        t = self.norm(y.flatten(2).transpose(1, 2))
        t = self.linear(t) + self.linear(torch.roll(t, 1, 1)).softmax(-1)
        a = F.scaled_dot_product_attention(t[:, None], t[:, None], t[:, None])[:, 0]
        m = F.interpolate(F.group_norm(y, 4), size=(9, 7), mode="bilinear")
        return a @ a.transpose(1, 2), F.pad(m, (1, 1, 1, 1), mode="reflect"), t.mean((1, 2))

torch.set_num_threads(1)
torch.manual_seed(0)
model, x = Net().eval(), torch.randn(1, 3, 8, 8)
if sys.argv[2] == "quantized":
    model = codtdq.quantize(model, "cod-tdq-plus", calibration=[x])
passes = ["epilogues", "in_place"] + ["chains"] * (sys.argv[3] == "chains")
program = Program(lambda x: type(model).forward(model, x), (x,), passes=passes)
chance = random.Random(int(sys.argv[1]))
arrays, engine = program.arrays, library.engine()
parts = [arrays.records, arrays.operands, arrays.ints, arrays.floats]
saved = [bytes(part) for part in parts]
refused = ran = 0
for _ in range(400):
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        part = chance.choice(parts)
        at = chance.randrange(ctypes.sizeof(part) // 8) * 8
        old = int.from_bytes(bytes(part)[at : at + 8], "little", signed=True)
        wild = (1 << chance.randrange(63), chance.randrange(1 << 62))
        new = chance.choice((old + 1, old - 1, old * 2, -old, 0, -1, *wild))
        ctypes.memmove(ctypes.addressof(part) + at, (new % (1 << 64)).to_bytes(8, "little"), 8)
    code, handle, wrong = arrays.build(engine)
    assert (code == 0) == (handle is not None)
    if code:
        refused += 1
    else:
        # strides of 0 make long loops of short memory: those are not run
        sizes = [1]
        for operand in arrays.operands:
            size = 1
            for n in operand.shape[: max(operand.ndim, 0)]:
                size *= n
            sizes.append(size)
        if max(sizes) < 1 << 20:
            results, pointers = program._prepare((x,))
            engine.cod_program_run(handle, *pointers, 1)
            ran += 1
        engine.cod_program_free(handle)
    for part, old in zip(parts, saved):
        ctypes.memmove(part, old, len(old))
assert arrays.build(engine)[0] == 0
print(refused, ran)
assert refused > 80 and ran > 20
"""


@pytest.mark.parametrize("passes", ["plain", "chains"])
@pytest.mark.parametrize("kind", ["float", "quantized"])
def test_random_changes(kind, passes):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", MUTATIONS, "7", kind, passes],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("field", "value"),
    [("space", 9), ("space", 2), ("buffer", 5), ("type", 7), ("ndim", 9), ("offset", -4)],
)
def test_an_operand_out_of_bounds_is_refused(field, value):
    program = Program(Applied(lambda x: x + 1), (torch.randn(4, 4),))
    setattr(program.arrays.operands[0], field, value)
    code, handle, wrong = program.arrays.build(library.engine())
    assert (code, handle, wrong) == (1, None, 0)


def test_a_shape_beyond_its_buffer_is_refused():
    program = Program(Applied(lambda x: x + 1), (torch.randn(4, 4),))
    for operand in program.arrays.operands:
        operand.shape[0] = 5
    assert program.arrays.build(library.engine())[0] == 1


def test_tables_out_of_range_are_refused():
    program = Program(Applied(lambda x: torch.roll(x, 1, 0)), (torch.randn(4, 4),))
    table = next(one for one in program.constants if one.dtype is torch.int32)
    table[2] = 4
    assert program.arrays.build(library.engine())[0] == 1
    table[2] = -2
    assert program.arrays.build(library.engine())[0] == 1


def test_buffers_of_a_run_are_counted_and_measured():
    """What is too short, missing or too much is refused before anything is written."""
    program = Program(lambda x: (torch.relu(x), x + 1.0), (torch.ones(2, 3),))
    engine, handle = library.engine(), program._handle
    results, (given, inputs, made, outputs) = program._prepare((torch.ones(2, 3),))
    for one in results:
        one.fill_(7.0)
    spent = (c_int64 * len(program.kinds))()

    def refused(*words, count=len(program.kinds)):
        ran = engine.cod_program_run(handle, *words, 1)
        timed = engine.cod_program_profile(handle, *words, 1, spent, count)
        return (ran, timed) == (BAD_ARGUMENT, BAD_ARGUMENT)

    assert refused(given, inputs - 1, made, outputs) and refused(given, inputs, made, outputs + 1)
    assert refused(None, inputs, made, outputs) and refused(given, inputs, None, outputs)
    for group in (given, made):
        group[0].bytes -= 1
        assert refused(given, inputs, made, outputs)
        group[0].bytes += 1
        kept, group[0].data = group[0].data, None
        assert refused(given, inputs, made, outputs)
        group[0].data = kept
    short = (given, inputs, made, outputs, 1, spent, len(program.kinds) - 1)
    assert engine.cod_program_profile(handle, *short) == BAD_ARGUMENT
    assert all(bool((one == 7.0).all()) for one in results)
    assert engine.cod_program_run(handle, given, inputs, made, outputs, 1) == 0
    assert bool((results[0] == 1.0).all()) and bool((results[1] == 2.0).all())
