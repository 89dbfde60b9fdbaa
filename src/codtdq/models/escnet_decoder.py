"""Mask decoder of ESCNet v1: patch injection, feature enhancement and masked channel attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codtdq.models.deform import GuidedDeformConv
from codtdq.models.escnet_blocks import (
    Cbam,
    ChannelAttention,
    ConvBottleneck,
    conv_bn_relu,
    image_tiles,
    laplacian_texture,
    resize_to,
)


class FeatureEnhance(nn.Module):
    """Edge-guided deformable convolution, then four growing kernels in a chain (FEM)."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.dwconv = GuidedDeformConv(in_channels, channels, edge_guided=True)
        self.conv1x1 = conv_bn_relu(channels, channels, 1)
        self.conv3x3 = conv_bn_relu(channels, channels, 3)
        self.conv5x5 = conv_bn_relu(channels, channels, 5)
        self.conv7x7 = conv_bn_relu(channels, channels, 7)
        self.final_conv = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        """x: [B, C_in, H, W], edge: [B, 1, H, W] -> [B, C, H, W]."""
        base = self.dwconv(x, edge)
        a = self.conv1x1(base)
        b = self.conv3x3(base + a)
        c = self.conv5x5(base + b)
        d = self.conv7x7(base + c)
        return self.final_conv(torch.cat((a, b, c, d), dim=1)) + base


class MaskedFusion(nn.Module):
    """Three channel attentions under three cues (mask, edge, texture), fused and gated (MTA)."""

    def __init__(
        self, channels: int, heads: int, ffn_factor: int, dropout: float, cbam_hidden: int
    ) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(1.0))
        self.beta = nn.Parameter(torch.tensor(1.0))
        self.conv1 = nn.Sequential(nn.Conv2d(3 * channels, channels, 3, padding=1))
        self.sa1 = ChannelAttention(channels, heads, ffn_factor, dropout)
        self.sa2 = ChannelAttention(channels, heads, ffn_factor, dropout)
        self.sa3 = ChannelAttention(channels, heads, ffn_factor, dropout)
        self.cbam = Cbam(channels, cbam_hidden)

    def forward(self, x: Tensor, mask: Tensor, edge: Tensor, texture: Tensor) -> Tensor:
        """x: [B, C, H, W]; cues [B, 1, *, *]: mask logits, edge probability, Laplacian.

        The cues steer the attention but are not trained through it.
        """
        by_mask = self.sa1(x, resize_to(mask.detach(), x))
        by_edge = self.alpha * self.sa2(x, resize_to(edge.detach(), x))
        by_texture = self.beta * self.sa3(x, resize_to(texture, x))
        return self.cbam(self.conv1(torch.cat((by_mask, by_edge, by_texture), dim=1)))


class MaskDecoder(nn.Module):
    """Coarse-to-fine mask logits from image, aligned maps and edge probability.

    inject: (hidden, out) channels of the patch injection; head: hidden channels of both ends.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        ffn_factor: int,
        dropout: float,
        *,
        inject: tuple[int, int],
        head: int,
        cbam_hidden: int,
    ) -> None:
        super().__init__()
        for level, stride in ((5, 32), (4, 16), (3, 8), (2, 4)):
            self.add_module(f"ipt_blk{level}", ConvBottleneck(3 * stride * stride, *inject))
        self.decoder_block4 = ConvBottleneck(channels, head, channels)
        for level in (3, 2, 1):
            block = MaskedFusion(channels, heads, ffn_factor, dropout, cbam_hidden)
            self.add_module(f"decoder_block{level}", block)
        for level in (4, 3, 2):
            self.add_module(f"conv_mask_{level}", nn.Sequential(nn.Conv2d(channels, 1, 1)))
        for level in (4, 3, 2, 1):
            self.add_module(f"De_conv{level}", FeatureEnhance(channels + inject[1], channels))
        self.tra_fr = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            *conv_bn_relu(channels, head, 1),
        )
        self.predictor_fr = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            *conv_bn_relu(head, head, 3),
            nn.Conv2d(head, 1, 1),
        )

    def forward(self, image: Tensor, features: list[Tensor], edge: Tensor) -> list[Tensor]:
        """Logits [m4, m3, m2, m1] at S/32, S/16, S/8 and S.

        image: [B, 3, S, S]; features: aligned maps x1..x4; edge: [B, 1, S, S] probability.
        """
        x1, x2, x3, x4 = (
            self._enhance(level, x, image, edge) for level, x in enumerate(features, start=1)
        )
        texture = laplacian_texture(image)
        state = self.decoder_block4(x4)
        masks = [self.get_submodule("conv_mask_4")(state)]
        for level, x in ((3, x3), (2, x2), (1, x1)):
            fused = resize_to(state, x) + x
            state = self.get_submodule(f"decoder_block{level}")(fused, masks[-1], edge, texture)
            if level > 1:
                masks.append(self.get_submodule(f"conv_mask_{level}")(state))
        masks.append(self.predictor_fr(self.tra_fr(state)))
        return masks

    def _enhance(self, level: int, x: Tensor, image: Tensor, edge: Tensor) -> Tensor:
        patches = self.get_submodule(f"ipt_blk{level + 1}")(image_tiles(image, x))
        joined = torch.cat((x, patches), dim=1)
        return self.get_submodule(f"De_conv{level}")(joined, resize_to(edge, x))
