"""The blocks of BiRefNet's decoder, with the parameter names of its release."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.models.deform import ModulatedDeformConv


def resize_aligned(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize [B, C, h, w] bilinearly with aligned corners, as every resize of this network."""
    if x.shape[-2:] == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


def map_size(x: Tensor) -> tuple[int, int]:
    """Height and width of a map [B, C, H, W]."""
    return x.shape[-2], x.shape[-1]


class DeformBranch(nn.Module):
    """Modulated deformable convolution, BatchNorm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.atrous_conv = ModulatedDeformConv(in_channels, out_channels, kernel)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H, W]."""
        return F.relu(self.bn(self.atrous_conv(x)))


class DeformPyramid(nn.Module):
    """Four deformable branches and the mean of the map, side by side, then back to C channels.

    The release calls it an atrous pyramid; no convolution in it is dilated.
    """

    def __init__(self, channels: int, branch: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        self.aspp1 = DeformBranch(channels, branch, 1)
        self.aspp_deforms = nn.ModuleList(DeformBranch(channels, branch, k) for k in kernels)
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, branch, 1, bias=False),
            nn.BatchNorm2d(branch),
            nn.ReLU(),
        )
        self.conv1 = nn.Conv2d(branch * (2 + len(kernels)), channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        parts = [self.aspp1(x), *(branch(x) for branch in self.aspp_deforms)]
        parts.append(self.global_avg_pool(x).expand(-1, -1, *map_size(x)))
        return self.dropout(F.relu(self.bn1(self.conv1(torch.cat(parts, dim=1)))))


class DecoderBlock(nn.Module):
    """Narrow, attend over deformed neighbourhoods, widen; no activation at the end."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        inner: int,
        branch: int,
        kernels: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels, inner, 3, padding=1)
        self.bn_in = nn.BatchNorm2d(inner)
        self.dec_att = DeformPyramid(inner, branch, kernels)
        self.conv_out = nn.Conv2d(inner, out_channels, 3, padding=1)
        self.bn_out = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H, W]."""
        x = F.relu(self.bn_in(self.conv_in(x)))
        return self.bn_out(self.conv_out(self.dec_att(x)))


class TileBlock(nn.Module):
    """Two 3x3 convolutions on tiles of the image, with nothing between them."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, hidden, 3, padding=1)
        self.conv_out = nn.Conv2d(hidden, out_channels, 3, padding=1)

    def forward(self, tiles: Tensor) -> Tensor:
        """[B, 3 s^2, H, W] -> [B, O, H, W]."""
        return self.conv_out(self.conv1(tiles))


class LateralBlock(nn.Module):
    """The 1x1 convolution through which a map of the encoder enters the decoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        return self.conv(x)


class MaskHead(nn.Module):
    """1x1 convolution to one channel on a coarse map, resized, beside a fine one.

    The release resizes first. The two commute, and so only one channel is resized instead of all:
    at 1024 x 1024 this saves 1.6 GB. It is no Conv2d, hence stays float under every method.
    """

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.coarse = coarse
        self.weight = nn.Parameter(torch.empty(1, coarse + fine, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """[B, C, h, w] and [B, D, H, W] -> [B, 1, H, W]."""
        low = F.conv2d(coarse, self.weight[:, : self.coarse], self.bias)
        return resize_aligned(low, map_size(fine)) + F.conv2d(fine, self.weight[:, self.coarse :])
