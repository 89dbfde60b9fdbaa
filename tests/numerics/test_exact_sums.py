"""Whole sums in float32 alone: cut where it could not hold them, and added as whole numbers."""

import itertools

import pytest
import torch

from codtdq.errors import ConfigError
from codtdq.numerics.carrier import EXACT_FLOAT, LARGEST, Carried, convolution, exact_cuts, linear


def carried(rows, unit_rows=1):
    units = torch.ones(-(-rows.shape[0] // unit_rows))
    return Carried(rows, units, torch.ones(1, dtype=torch.uint8), unit_rows)


@pytest.fixture
def draw():
    source = torch.Generator().manual_seed(0)
    return lambda low, high, *shape: torch.randint(low, high + 1, shape, generator=source)


def test_parts_fit_and_are_as_long_as_they_may_be(draw):
    weight = draw(60, 127, 5, 9, 700)
    cuts = exact_cuts(weight)
    ends = [0, *cuts, 700]
    assert len(cuts) > 2 and ends == sorted(set(ends))
    for begin, end in itertools.pairwise(ends):
        assert LARGEST * int(weight[..., begin:end].sum((1, 2)).max()) <= EXACT_FLOAT
        if end < 700:
            assert LARGEST * int(weight[..., begin : end + 1].sum((1, 2)).max()) > EXACT_FLOAT
    assert exact_cuts(draw(-5, 5, 5, 1, 700)) == []


def test_linear_sums_are_those_of_whole_numbers(draw):
    rows, weight = draw(-127, 127, 6, 3000).to(torch.int8), draw(100, 127, 4, 1, 3000)
    rows[0] = 127  # a sum of more than 24 bits
    cuts = exact_cuts(weight)
    found = linear(carried(rows), weight.float(), torch.ones(4), cuts=cuts)
    wanted = rows.long() @ weight[:, 0].long().t()
    assert cuts and int(wanted.max()) > EXACT_FLOAT
    assert torch.equal(found, wanted.float())


def test_sums_of_a_convolution_are_those_of_whole_numbers(draw):
    rows, weight = draw(-127, 127, 36, 400).to(torch.int8), draw(-127, 127, 4, 9, 400)
    weight[0] = 127
    cuts = exact_cuts(weight)
    settings = {"pads": (1, 1, 1, 1), "cuts": cuts}
    given = carried(rows, 36), (1, 6, 6)
    found = convolution(*given, weight.float(), (3, 3), torch.ones(4), **settings)
    wanted = convolution(*given, weight.double(), (3, 3), torch.ones(4), pads=(1, 1, 1, 1))
    assert cuts and torch.equal(found[0], wanted[0]) and found[1] == wanted[1] == (6, 6)


def test_a_kernel_that_no_cut_can_help_is_refused(draw):
    with pytest.raises(ConfigError, match="taps"):
        exact_cuts(draw(127, 127, 1, 1100, 2))
