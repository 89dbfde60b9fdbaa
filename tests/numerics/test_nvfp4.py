"""NVFP4: the grids, the ties, the blocks."""

import pytest
import torch

from codtdq.numerics import nvfp4

GRID = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize(
    ("x", "expected"),
    [(0.24, 0), (0.26, 0.5), (1.3, 1.5), (2.4, 2), (2.6, 3), (4.9, 4), (5.1, 6), (7, 6)],
)
def test_worked_values(x, expected):
    assert nvfp4.round_e2m1(torch.tensor([x, -x])).tolist() == [expected, -expected]


@pytest.mark.parametrize("index", range(7))
def test_ties_go_to_the_even_mantissa(index):
    tie = torch.tensor((GRID[index] + GRID[index + 1]) / 2)
    even = GRID[index] if index % 2 == 0 else GRID[index + 1]  # mantissa bit = last bit of the code
    assert nvfp4.round_e2m1(tie) == even


def test_rounding_is_to_the_nearest_value_of_the_grid():
    x = torch.linspace(-7, 7, 4003)
    signed = torch.tensor(GRID + [-v for v in GRID])
    best = (x[:, None] - signed).abs().amin(1)
    assert torch.allclose((nvfp4.round_e2m1(x) - x).abs(), best, atol=1e-6)
    assert nvfp4.round_e2m1(torch.tensor(float("nan"))).isnan()


def test_codes_are_the_bits_of_the_format():
    values = torch.tensor(GRID + [-v for v in GRID[1:]])
    codes = nvfp4.encode_e2m1(values)
    assert codes.tolist() == [*range(8), *range(9, 16)]
    assert torch.equal(nvfp4.decode_e2m1(codes), values)


def test_block_scale_is_e4m3_and_saturates():
    assert nvfp4.to_e4m3(torch.tensor([1e9, 449.0, 17.0, 19.0])).float().tolist() == [
        448,
        448,
        16,
        20,
    ]


def test_blocks_are_counted_from_the_end():
    x = torch.arange(1.0, 25.0)
    blocks = nvfp4.to_blocks(x)
    assert blocks.shape == (2, 16)
    assert blocks[0].tolist() == [0.0] * 8 + list(range(1, 9))
    assert torch.equal(nvfp4.from_blocks(blocks, 24), x)


def test_against_a_loop():
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)) * 5
    t = nvfp4.tensor_scale(x.abs().amax())
    assert float(t) == pytest.approx(float(x.abs().max()) / 2688)
    got = nvfp4.fake_nvfp4(x, t)
    for row in range(3):
        for start in (-32, -16, 0):
            part = slice(24, 40) if start == -16 else slice(8, 24) if start == -32 else slice(0, 8)
            block = x[row, part]
            scale = (block.abs().max() / (6 * t)).to(torch.float8_e4m3fn).float() * t
            for value, result in zip(block / scale, got[row, part] / scale):
                nearest = min(GRID, key=lambda g: abs(g - abs(float(value))))
                assert abs(float(result)) == pytest.approx(nearest, abs=1e-5)


def test_small_block_beside_a_large_one_keeps_its_precision():
    x = torch.cat([torch.full((16,), 1e-1), torch.full((16,), 1e3)])
    got = nvfp4.fake_nvfp4(x, nvfp4.tensor_scale(x.abs().amax()))
    assert torch.allclose(got, x, rtol=0.1)


def test_zeros_and_underflow_give_zero_not_nan():
    zeros = torch.zeros(2, 16)
    assert torch.equal(nvfp4.fake_nvfp4(zeros, nvfp4.tensor_scale(zeros.amax())), zeros)
    x = torch.cat([torch.full((16,), 1e-12), torch.ones(16)])
    got = nvfp4.fake_nvfp4(x, nvfp4.tensor_scale(x.amax()))
    assert torch.equal(got[:16], torch.zeros(16))
