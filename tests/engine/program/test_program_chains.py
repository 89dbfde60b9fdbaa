"""Chains give the bits of their instructions one by one, for any rows, threads and sets."""

import itertools

import pytest
import torch
from engine_cases import SETS, instruction_set, needs_engine, quantized, torch_threads
from program_cases import tensors
from torch import nn

from codtdq.declarations import Declaration
from codtdq.engine import use_backend
from codtdq.engine.program.program import Program

pytestmark = needs_engine


class Block(nn.Module):
    """A transformer's residual branch: norm, two products, a scale for each channel."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(dim), nn.GELU()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.gain = nn.Parameter(torch.rand(dim))
        self.last = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.gain * self.fc2(self.act(self.fc1(self.norm(x))))
        return self.last(x)


class Mixed(nn.Module):
    """Rows that meet other rows between two branches."""

    def __init__(self, dim):
        super().__init__()
        self.first, self.second = Block(dim, 2 * dim), Block(dim, 3 * dim)

    def forward(self, x):
        x = self.first(x)
        return self.second(x + x.mean(1, keepdim=True))


def programs(model, x):
    plain = Program(model, (x,), passes=())
    return plain, Program(model, (x,))


@pytest.mark.parametrize("rows", [2, 5, 24, 100, 577])
@pytest.mark.parametrize("bits", ["float", "w4a4"])
def test_chains_give_the_bits_of_their_instructions(bits, rows):
    torch.manual_seed(rows)
    model = Block(48, 130).eval()
    if bits == "w4a4":
        model = quantized(model)
    x = torch.randn(1, rows, 48)
    for name, threads in itertools.product(SETS, (1, 3)):
        with instruction_set(name), torch_threads(threads):
            if bits == "w4a4":
                use_backend(model, "cpu")
            plain, chained = programs(model, x)
            assert "chain" in chained.kinds
            assert chained.passes["chains"] >= 2
            assert "chain" not in plain.kinds
            found, wanted = tensors(chained(x)), tensors(plain(x))
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), name


def test_a_chain_ends_where_rows_meet():
    torch.manual_seed(0)
    model, x = Mixed(32).eval(), torch.randn(2, 50, 32)
    plain, chained = programs(model, x)
    assert chained.kinds.count("chain") == 2
    assert chained.arena_bytes < plain.arena_bytes
    assert torch.equal(chained(x), plain(x))


class Gated(nn.Module):
    """Every row times one number of its own, which is spread over its columns."""

    def __init__(self, dim):
        super().__init__()
        self.mix, self.gate = nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, x):
        x = self.mix(x)
        return x * self.gate(x).sigmoid()


@pytest.mark.parametrize("rows", [1, 4, 577])
def test_a_number_for_each_row_is_spread_over_it(rows):
    torch.manual_seed(rows)
    model, x = Gated(48).eval(), torch.randn(1, rows, 48)
    plain, chained = programs(model, x)
    assert torch.equal(chained(x), plain(x))
    with torch.no_grad():
        torch.testing.assert_close(chained(x), model(x), rtol=1e-5, atol=1e-6)


class Gate(nn.Module):
    """GELU of half of the channels times the other half, along with what writes them."""

    quantization = Declaration(fused_as="gated_gelu")

    def forward(self, x):
        y, gate = x.chunk(2, dim=1)
        return nn.functional.gelu(y) * gate


class Local(nn.Module):
    """The MLP of a PVT: a depthwise convolution of a map between two products of its rows."""

    def __init__(self, dim, hidden, stride, act):
        super().__init__()
        self.fc1 = nn.Conv2d(dim, hidden, 1)
        self.mix = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden)
        self.act = act
        self.fc2 = nn.Conv2d(hidden // (1 + isinstance(act, Gate)), dim, 1)

    def forward(self, x):
        return self.fc2(self.act(self.mix(self.fc1(x))))


@pytest.mark.parametrize("stride, act", [(1, nn.GELU()), (2, nn.ReLU()), (1, Gate())])
@pytest.mark.parametrize("size", [(1, 3), (9, 5), (30, 41)])
def test_a_depthwise_convolution_begins_a_chain(size, stride, act):
    torch.manual_seed(sum(size))
    model = quantized(Local(48, 160, stride, act).eval())
    x = torch.randn(2, 48, *size)
    for name, threads in itertools.product(SETS, (1, 3)):
        with instruction_set(name), torch_threads(threads):
            use_backend(model, "cpu", example=x)
            plain, chained = programs(model, x)
            assert "carrier_depthwise" in plain.kinds
            assert "carrier_depthwise" not in chained.kinds
            assert torch.equal(chained(x), plain(x)), name
