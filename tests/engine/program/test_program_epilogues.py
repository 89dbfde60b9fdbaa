"""Gains and residuals that a quantized product takes along: the bits of doing them one by one."""

import pytest
import torch
from engine_cases import needs_engine
from torch import nn

import codtdq
from codtdq.engine.program.passes import PASSES
from codtdq.engine.program.program import Program

pytestmark = needs_engine


class Block(nn.Module):
    """Layer scale and residuals around Linear and a convolution, as ViT and CNNs have them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 40, 3, padding=1)
        self.conv = nn.Conv2d(40, 40, 3, padding=1)
        self.wide, self.gelu, self.narrow = nn.Linear(40, 72), nn.GELU(), nn.Linear(72, 40)
        self.gamma = nn.Parameter(torch.randn(40))

    def forward(self, image):
        x = self.stem(image)
        x = x + self.conv(x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.narrow(self.gelu(self.wide(tokens))) * self.gamma
        return tokens * tokens.amax(-1, keepdim=True)


def programs(*passes):
    torch.manual_seed(0)
    model = codtdq.quantize(Block().eval(), "cod-tdq")
    x = torch.randn(2, 3, 9, 7)
    codtdq.use_backend(model, "cpu", example=x, capture=False)
    return x, [Program(model, (x,), passes=given) for given in passes]


def test_the_same_bits_as_one_by_one():
    x, (plain, joined, chained) = programs((), ("epilogues",), PASSES)
    assert joined.passes["epilogues"] >= 3  # two sums and a gain
    assert joined.kinds.count("binary") == plain.kinds.count("binary") - 3
    assert torch.equal(joined(x), plain(x))
    assert torch.equal(chained(x), plain(x))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads):
    x, (joined,) = programs(PASSES)
    expected = joined(x)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(joined(x), expected)
    finally:
        torch.set_num_threads(before)


def test_a_table_of_tokens_is_no_gain():
    """A factor for each token and column is multiplied on its own."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)
            self.table = nn.Parameter(torch.randn(5, 32))

        def forward(self, x):
            return self.linear(x) * self.table

    torch.manual_seed(0)
    model = codtdq.quantize(Gated().eval(), "cod-tdq")
    x = torch.randn(1, 5, 32)
    codtdq.use_backend(model, "cpu", example=x, capture=False)
    joined = Program(model, (x,))
    assert joined.passes["epilogues"] == 0
    assert torch.equal(joined(x), Program(model, (x,), passes=())(x))
