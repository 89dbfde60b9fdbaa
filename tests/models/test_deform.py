"""Deformable convolution against a loop and against its plain special cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from codtdq.models.deform import DeformConv2d, GuidedDeformConv, deform_columns


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def read_bilinear(plane: Tensor, y: float, x: float) -> float:
    """Bilinear value of a plane [H, W], zeros outside."""
    top, left = math.floor(y), math.floor(x)
    total = 0.0
    for row, row_part in ((top, top + 1 - y), (top + 1, y - top)):
        for col, col_part in ((left, left + 1 - x), (left + 1, x - left)):
            if 0 <= row < plane.shape[0] and 0 <= col < plane.shape[1]:
                total += row_part * col_part * float(plane[row, col])
    return total


def test_deform_conv_equals_loop() -> None:
    x, offsets = draw(2, 2, 4, 5), 1.5 * draw(2, 18, 4, 5, seed=1)
    layer = DeformConv2d(2, 3).double()
    layer.bias.data.copy_(draw(3, seed=2))
    with torch.no_grad():
        found = layer(x, offsets)
        expected = layer.bias[None, :, None, None].expand(2, 3, 4, 5).clone()
        for b in range(2):
            for row in range(4):
                for col in range(5):
                    for k in range(9):
                        dy, dx = offsets[b, 2 * k : 2 * k + 2, row, col].tolist()
                        y, z = row + k // 3 - 1 + dy, col + k % 3 - 1 + dx
                        for c in range(2):
                            value = read_bilinear(x[b, c], y, z)
                            expected[b, :, row, col] += layer.weight[:, c, k // 3, k % 3] * value
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 4)], ids=str)
def test_deform_conv_without_offsets_is_a_convolution(size: tuple[int, int]) -> None:
    x = draw(2, 3, *size)
    layer = DeformConv2d(3, 4).double()
    found = layer(x, torch.zeros(2, 18, *size, dtype=torch.float64))
    expected = F.conv2d(x, layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_even_offset_channels_move_down_and_odd_ones_right() -> None:
    x = draw(1, 1, 6, 6)
    down = torch.zeros(1, 18, 6, 6, dtype=torch.float64)
    down[:, 0::2] = 1.0
    centre = deform_columns(x, down).view(9, 6, 6)[4]
    torch.testing.assert_close(centre[:-1], x[0, 0, 1:], rtol=0, atol=1e-12)
    assert centre[-1].abs().max() < 1e-12
    centre = deform_columns(x, down.roll(1, dims=1)).view(9, 6, 6)[4]
    torch.testing.assert_close(centre[:, :-1], x[0, 0, :, 1:], rtol=0, atol=1e-12)


def test_deform_conv_gradients() -> None:
    layer = DeformConv2d(2, 2).double()
    x = draw(1, 2, 3, 3).requires_grad_()
    offsets = (0.3 * draw(1, 18, 3, 3, seed=3)).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x, offsets))


def test_deform_conv_ignores_memory_format() -> None:
    layer = DeformConv2d(3, 4).double()
    x, offsets = draw(2, 3, 5, 6), draw(2, 18, 5, 6, seed=4)
    plain = layer(x, offsets)
    channels_last = (t.contiguous(memory_format=torch.channels_last) for t in (x, offsets))
    torch.testing.assert_close(layer(*channels_last), plain, rtol=0, atol=1e-12)


def test_guided_deform_conv_multiplies_offsets_with_edge_offsets() -> None:
    block = GuidedDeformConv(3, 4, edge_guided=True).double().eval()
    x, edge = draw(1, 3, 5, 5), draw(1, 1, 5, 5, seed=5).sigmoid()
    offsets = block.offset_conv(x) * block.offset_edge(edge)
    expected = F.relu(block.bn(block.deform_conv(x, offsets)))
    assert torch.equal(block(x, edge), expected)
    plain_keys = GuidedDeformConv(3, 4, edge_guided=False).state_dict()
    assert not any(key.startswith("offset_edge") for key in plain_keys)
