"""Deformable convolutions in plain PyTorch: 3x3 with given offsets, and k x k with modulation.

out[b, o, y, x] = bias[o] + sum_{c, k} w[o, c, k] * v[b, c, y + k//3 - 1 + dy_k, x + k%3 - 1 + dx_k]

v is read bilinearly, with zeros outside the map; k = 0..8 runs row-major over the kernel and
offset channel 2k is dy_k, 2k+1 is dx_k, both in pixels. Modulation multiplies what each tap reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.declarations import Declaration

KERNEL_POINTS = 9
SAMPLES_AT_ONCE = 1 << 26  # values of a modulated convolution's map of samples: 256 MB in float32


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
    # all nine points in one call: the kernel index is folded into the rows of the grid
    samples = _read(
        x, (delta[:, :, 0] + base_y).flatten(1, 2), (delta[:, :, 1] + base_x).flatten(1, 2)
    )
    return samples.reshape(batch, -1, height * width)  # of [B, C, 9 * H, W]


def _read(x: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Bilinear values of x [B, C, H, W] at points [B, h, w] in pixels, zeros outside."""
    height, width = x.shape[-2:]
    # pixel centres to [-1, 1], the convention of align_corners=False
    grid_y = rows * (2.0 / height) + (1.0 / height - 1.0)
    grid_x = cols * (2.0 / width) + (1.0 / width - 1.0)
    grid = torch.stack((grid_x, grid_y), dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


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


class ModulatedDeformConv(nn.Module):
    """k x k deformable convolution, stride 1, that predicts its own offsets and modulation.

    Every pixel's k x k samples are laid out as a k x k cell of a larger map, which a convolution
    with stride k then reads: the product is an ordinary operator, quantized like any other.
    """

    quantization = Declaration(token_grid="input")

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        taps = kernel * kernel
        self.offset_conv = nn.Conv2d(in_channels, 2 * taps, kernel, padding=kernel // 2)
        self.modulator_conv = nn.Conv2d(in_channels, taps, kernel, padding=kernel // 2)
        self.regular_conv = nn.Conv2d(in_channels, out_channels, kernel, stride=kernel, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, H, W] -> [B, C_out, H, W]."""
        offsets = self.offset_conv(x)
        gain = 2.0 * self.modulator_conv(x).sigmoid()
        height = x.shape[-2]
        # a map of samples is k^2 times as large as x: read it in strips of rows that fit a budget
        strips = -(-x.numel() * self.kernel**2 // SAMPLES_AT_ONCE)
        rows = -(-height // strips)
        parts = [
            self.regular_conv(self._samples(x, offsets, gain, top, min(top + rows, height)))
            for top in range(0, height, rows)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _samples(self, x: Tensor, offsets: Tensor, gain: Tensor, top: int, bottom: int) -> Tensor:
        """What the taps of rows `top` to `bottom` read: [B, C, k * rows, k * W]."""
        k, strip = self.kernel, slice(top, bottom)
        down = F.pixel_shuffle(offsets[:, 0::2, strip], k).squeeze(1)  # [B, k * rows, k * W]
        right = F.pixel_shuffle(offsets[:, 1::2, strip], k).squeeze(1)
        rows, cols = (_cells(a, b, k, x) for a, b in ((top, bottom), (0, x.shape[-1])))
        return _read(x, down + rows[:, None], right + cols) * F.pixel_shuffle(gain[:, :, strip], k)


def _cells(first: int, last: int, kernel: int, like: Tensor) -> Tensor:
    """Pixels that the taps of the pixels `first` to `last` of a line read without offsets."""
    line = torch.arange(first, last, device=like.device, dtype=like.dtype)
    taps = torch.arange(kernel, device=like.device, dtype=like.dtype) - kernel // 2
    return (line[:, None] + taps).flatten()
