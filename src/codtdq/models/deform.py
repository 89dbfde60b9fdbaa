"""Deformable 3x3 convolution (no modulation mask) in plain PyTorch.

out[b, o, y, x] = bias[o] + sum_{c, k} w[o, c, k] * v[b, c, y + k//3 - 1 + dy_k, x + k%3 - 1 + dx_k]

v is read bilinearly, with zeros outside the map; k = 0..8 runs row-major over the kernel and
offset channel 2k is dy_k, 2k+1 is dx_k, both in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.declarations import Declaration

KERNEL_POINTS = 9


def deform_columns(x: Tensor, offsets: Tensor) -> Tensor:
    """Read the nine displaced neighbours of every pixel.

    x: [B, C, H, W]; offsets: [B, 18, H, W] as (dy, dx) pairs in pixels.
    Returns [B, C * 9, H * W], ordered as `weight.flatten(1)` of a 3x3 convolution.
    """
    batch, _, height, width = x.shape
    delta = offsets.reshape(batch, KERNEL_POINTS, 2, height, width)
    steps = torch.arange(-1, 2, device=x.device, dtype=x.dtype)
    rows = torch.arange(height, device=x.device, dtype=x.dtype)
    cols = torch.arange(width, device=x.device, dtype=x.dtype)
    base_y = steps.repeat_interleave(3)[:, None, None] + rows[:, None]  # [9, H, 1]
    base_x = steps.repeat(3)[:, None, None] + cols  # [9, 1, W]
    # pixel centres to [-1, 1], the convention of align_corners=False
    grid_y = (delta[:, :, 0] + base_y) * (2.0 / height) + (1.0 / height - 1.0)
    grid_x = (delta[:, :, 1] + base_x) * (2.0 / width) + (1.0 / width - 1.0)
    # all nine points in one call: the kernel index is folded into the rows of the grid
    grid = torch.stack((grid_x, grid_y), dim=-1).flatten(1, 2)  # [B, 9 * H, W, 2]
    samples = F.grid_sample(
        x, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )  # [B, C, 9 * H, W]
    return samples.reshape(batch, -1, height * width)


class DeformConv2d(nn.Module):
    """3x3 convolution, stride 1, whose taps are displaced by given offsets."""

    # pixels stay where they are, whatever the taps read
    quantization = Declaration(computed_as="deform3x3", token_grid="input")
    executor: Callable[[Tensor, Tensor], Tensor | None] | None = None

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, 3, 3))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.normal_(self.weight, std=math.sqrt(2.0 / (KERNEL_POINTS * in_channels)))

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """x: [B, C_in, H, W], offsets: [B, 18, H, W] -> [B, C_out, H, W]."""
        done = None if self.executor is None else self.executor(x, offsets)
        if done is not None:
            return done
        columns = deform_columns(x, offsets)
        # baddbmm over the expanded weight: a 2-D by 3-D matmul would copy the columns transposed
        weight = self.weight.flatten(1).expand(x.shape[0], -1, -1)
        out = torch.baddbmm(self.bias[:, None], weight, columns)
        return out.unflatten(2, x.shape[-2:])

    def extra_repr(self) -> str:
        """Channels, for the printed module tree."""
        return f"{self.in_channels}, {self.out_channels}, kernel_size=3"


class GuidedDeformConv(nn.Module):
    """Deformable convolution that predicts its own offsets, then BatchNorm and ReLU.

    edge_guided: multiply the offsets with ones predicted from an edge map.
    """

    def __init__(self, in_channels: int, out_channels: int, *, edge_guided: bool) -> None:
        super().__init__()
        self.edge_guided = edge_guided
        self.bn = nn.BatchNorm2d(out_channels)
        self.deform_conv = DeformConv2d(in_channels, out_channels)
        self.offset_conv = nn.Conv2d(in_channels, 2 * KERNEL_POINTS, 3, padding=1)
        if edge_guided:
            self.offset_edge = nn.Conv2d(1, 2 * KERNEL_POINTS, 3, padding=1)

    def forward(self, x: Tensor, edge: Tensor | None = None) -> Tensor:
        """x: [B, C_in, H, W]; edge: [B, 1, H, W] edge probability, when edge-guided."""
        offsets = self.offset_conv(x)
        if self.edge_guided:
            assert edge is not None
            offsets = offsets * self.offset_edge(edge)
        return F.relu(self.bn(self.deform_conv(x, offsets)))
