"""Edge branch of ESCNet v1 (AETP): edge logits from the four aligned feature maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codtdq.models.deform import GuidedDeformConv
from codtdq.models.escnet_blocks import ChannelAttention, resize_to


def top_fusion(channels: int) -> nn.Sequential:
    """Merge a level with the resized top level, [B, 2C, H, W] -> [B, C, H, W]."""
    return nn.Sequential(
        nn.Conv2d(2 * channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, padding=1),
    )


class EdgeBranch(nn.Module):
    """Top-down edge predictor with deformable refinements and channel attention."""

    def __init__(self, channels: int, heads: int, ffn_factor: int, dropout: float) -> None:
        super().__init__()
        self.reduce3 = top_fusion(channels)
        self.reduce2 = top_fusion(channels)
        self.reduce1 = top_fusion(channels)
        self.conv4_1 = GuidedDeformConv(channels, channels, edge_guided=False)
        self.conv3_1 = GuidedDeformConv(channels, channels, edge_guided=False)
        self.conv2_1 = GuidedDeformConv(channels, channels, edge_guided=False)
        self.sa_f3 = ChannelAttention(channels, heads, ffn_factor, dropout)
        self.sa_f2 = ChannelAttention(channels, heads, ffn_factor, dropout)
        self.sa_s2 = ChannelAttention(channels, heads, ffn_factor, dropout)
        self.conv_s2 = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.edge_conv = nn.Conv2d(3 * channels, channels, 3, padding=1)
        self.out = nn.Conv2d(channels, 1, 1)

    def forward(self, x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor, image: Tensor) -> Tensor:
        """Aligned maps [B, C, S/4..S/32] and the image (for its size) -> logits [B, 1, S, S]."""
        x3 = self.reduce3(torch.cat((x3, resize_to(x4, x3)), dim=1))
        x2 = self.reduce2(torch.cat((x2, resize_to(x4, x2)), dim=1))
        x1 = self.reduce1(torch.cat((x1, resize_to(x4, x1)), dim=1))

        f3 = x3 + self.conv4_1(resize_to(x4, x3))
        f2 = x2 + self.conv3_1(resize_to(x3, x2))
        f1 = x1 + self.conv2_1(resize_to(x2, x1))

        middle = torch.cat((f2, self.sa_f3(resize_to(f3, f2))), dim=1)
        low = torch.cat((f1, self.sa_f2(resize_to(f2, f1))), dim=1)
        middle = self.sa_s2(self.conv_s2(resize_to(middle, low)))
        edge = self.edge_conv(torch.cat((middle, low), dim=1))
        # The release resizes all C channels and then applies `out`; a 1x1 convolution commutes
        # with a bilinear resize (its weights sum to 1), and one channel is far cheaper to resize.
        return resize_to(self.out(edge), image)
