"""ESCNet v2: the lighter re-trained ESCNet, with PVTv2-B4 (68.6 M parameters).

Same inputs, outputs and data flow as v1; depthwise-separable convolutions replace the deformable
ones of the edge branch and the dense ones of the enhancement, and the channel attention
normalises its queries and keys. Lists of levels run deep to shallow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.declarations import Declaration
from codtdq.models.deform import GuidedDeformConv
from codtdq.models.escnet import ESCNET_ACT_MODES, ESCNET_PAPER, Encoder, final_mask
from codtdq.models.escnet_blocks import (
    Cbam,
    ChannelLayerNorm,
    ConvBottleneck,
    GatedFeedForward,
    check_image_sides,
    conv_bn_relu,
    image_tiles,
    laplacian_texture,
    resize_to,
    split_heads,
)
from codtdq.models.escnet_edge import top_fusion
from codtdq.models.escnet_init import init_escnet_head
from codtdq.models.pvt_v2 import PVT_V2, PvtV2, PvtV2Config
from codtdq.models.registry import register_model

WIDTH = 128
HEADS = 8
INJECT = (64, 32)  # hidden and output channels of the patch injection
HEAD_WIDTH = 64
CBAM_HIDDEN = 8


class SeparableConv(nn.Module):
    """Depthwise k x k, pointwise 1x1 (no biases), BatchNorm, ReLU."""

    quantization = Declaration(roles={"dw": "depthwise"})

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(
            channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False
        )
        self.pw = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, C, H, W]."""
        return F.relu(self.bn(self.pw(self.dw(x))))


class NormalisedChannelAttention(nn.Module):
    """Channel attention with unit-length q and k rows and a learned temperature per head."""

    quantization = Declaration(
        roles={"qkv": "attention", "qkv_dw": "depthwise", "proj": "attention"}
    )

    def __init__(self, channels: int, heads: int, ffn_factor: int) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.gamma_attn = nn.Parameter(torch.ones(channels, 1, 1))
        self.gamma_ffn = nn.Parameter(torch.ones(channels, 1, 1))
        self.norm1 = ChannelLayerNorm(channels)
        self.norm2 = ChannelLayerNorm(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.qkv_dw = nn.Conv2d(
            3 * channels, 3 * channels, 3, padding=1, groups=3 * channels, bias=False
        )
        self.proj = nn.Conv2d(channels, channels, 1)
        self.ffn = GatedFeedForward(channels, ffn_factor)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: [B, C, H, W]; mask: [B, 1, H, W] multiplies keys and values."""
        x = x + self.gamma_attn * self._attend(self.norm1(x), mask)
        return x + self.gamma_ffn * self.ffn(self.norm2(x))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv_dw(self.qkv(x)).chunk(3, dim=1)
        if mask is not None:
            k, v = k * mask, v * mask
        q, k, v = (split_heads(part, self.heads) for part in (q, k, v))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        weights = (q @ k.transpose(-2, -1) * self.temperature).softmax(dim=-1)
        return self.proj((weights @ v).flatten(1, 2).unflatten(2, x.shape[-2:]))


class TopInjection(nn.Module):
    """Merge a level with the resized top level."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = top_fusion(channels)

    def forward(self, x: Tensor, top: Tensor) -> Tensor:
        """x: [B, C, H, W], top: [B, C, h, w] -> [B, C, H, W]."""
        return self.reduce(torch.cat((x, resize_to(top, x)), dim=1))


class EdgeBranchV2(nn.Module):
    """Edge logits from the aligned maps."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.inject_top = nn.ModuleList(TopInjection(channels) for _ in range(3))
        self.refine = nn.ModuleList(SeparableConv(channels, 3) for _ in range(3))
        self.attn = nn.ModuleList(
            NormalisedChannelAttention(channels, heads, ffn_factor=1) for _ in range(3)
        )
        self.merge_mid = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.edge_fusion = nn.Conv2d(3 * channels, channels, 3, padding=1)
        self.out = nn.Conv2d(channels, 1, 1)

    def forward(self, x4: Tensor, x3: Tensor, x2: Tensor, x1: Tensor, image: Tensor) -> Tensor:
        """Aligned maps, deep to shallow, and the image (for its size) -> [B, 1, S, S]."""
        levels = [x4]
        for inject, x in zip(self.inject_top, (x3, x2, x1)):
            levels.append(inject(x, x4))
        f3, f2, f1 = (
            fine + refine(resize_to(coarse, fine))
            for refine, coarse, fine in zip(self.refine, levels, levels[1:])
        )
        middle = torch.cat((f2, self.attn[0](resize_to(f3, f2))), dim=1)
        low = torch.cat((f1, self.attn[1](resize_to(f2, f1))), dim=1)
        middle = self.attn[2](self.merge_mid(resize_to(middle, low)))
        edge = self.edge_fusion(torch.cat((middle, low), dim=1))
        # 1x1 before the resize: equal to the release's order, far cheaper (see EdgeBranch)
        return resize_to(self.out(edge), image)


class FeatureEnhanceV2(nn.Module):
    """Edge-guided deformable convolution, then a chain of separable kernels 1, 3, 5, 7."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.dwconv = GuidedDeformConv(in_channels, channels, edge_guided=True)
        self.branches = nn.ModuleList(SeparableConv(channels, kernel) for kernel in (1, 3, 5, 7))
        self.fuse = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        """x: [B, C_in, H, W], edge: [B, 1, H, W] -> [B, C, H, W]."""
        base = self.dwconv(x, edge)
        outputs: list[Tensor] = []
        for branch in self.branches:
            outputs.append(branch(base + outputs[-1] if outputs else base))
        return self.fuse(torch.cat(outputs, dim=1)) + base


class MaskedFusionV2(nn.Module):
    """Three channel attentions under mask, edge and texture cues, fused and gated."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.edge_weight = nn.Parameter(torch.tensor(1.0))
        self.texture_weight = nn.Parameter(torch.tensor(1.0))
        self.fusion = nn.Conv2d(3 * channels, channels, 3, padding=1)
        self.mask_attn = NormalisedChannelAttention(channels, heads, ffn_factor=2)
        self.edge_attn = NormalisedChannelAttention(channels, heads, ffn_factor=2)
        self.texture_attn = NormalisedChannelAttention(channels, heads, ffn_factor=2)
        self.refine = Cbam(channels, CBAM_HIDDEN)

    def forward(self, x: Tensor, mask: Tensor, edge: Tensor, texture: Tensor) -> Tensor:
        """x: [B, C, H, W]; cues [B, 1, *, *]: mask logits, edge probability, Laplacian."""
        by_mask = self.mask_attn(x, resize_to(mask.detach(), x))
        by_edge = self.edge_weight * self.edge_attn(x, resize_to(edge.detach(), x))
        by_texture = self.texture_weight * self.texture_attn(x, resize_to(texture, x))
        return self.refine(self.fusion(torch.cat((by_mask, by_edge, by_texture), dim=1)))


class MaskDecoderV2(nn.Module):
    """Coarse-to-fine mask logits from image, aligned maps and edge probability."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.patch_projs = nn.ModuleList(
            ConvBottleneck(3 * stride * stride, *INJECT) for stride in (32, 16, 8, 4)
        )
        self.fem_layers = nn.ModuleList(
            FeatureEnhanceV2(channels + INJECT[1], channels) for _ in range(4)
        )
        self.coarse_head = ConvBottleneck(channels, HEAD_WIDTH, channels)
        self.decode_blocks = nn.ModuleList(MaskedFusionV2(channels, heads) for _ in range(3))
        self.mask_heads = nn.ModuleList(nn.Conv2d(channels, 1, 1) for _ in range(3))
        self.upsample_refine = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            *conv_bn_relu(channels, HEAD_WIDTH, 1),
        )
        self.final_mask_head = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            *conv_bn_relu(HEAD_WIDTH, HEAD_WIDTH, 3),
            nn.Conv2d(HEAD_WIDTH, 1, 1),
        )

    def forward(self, image: Tensor, features: list[Tensor], edge: Tensor) -> list[Tensor]:
        """Logits [m4, m3, m2, m1]; features: aligned maps, deep to shallow."""
        enhanced = []
        for project, enhance, x in zip(self.patch_projs, self.fem_layers, features):
            joined = torch.cat((x, project(image_tiles(image, x))), dim=1)
            enhanced.append(enhance(joined, resize_to(edge, x)))
        texture = laplacian_texture(image)
        state = self.coarse_head(enhanced[0])
        masks: list[Tensor] = []
        for head, block, x in zip(self.mask_heads, self.decode_blocks, enhanced[1:]):
            masks.append(head(state))
            state = block(resize_to(state, x) + x, masks[-1], edge, texture)
        masks.append(self.final_mask_head(self.upsample_refine(state)))
        return masks


class ChannelAlign(nn.Module):
    """Bring one encoder level to the common width."""

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.proj = conv_bn_relu(dim, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_n, H, W] -> [B, C, H, W]."""
        return self.proj(x)


class EscNetV2(nn.Module):
    """ESCNet v2: returns (edge logits, [m4, m3, m2, m1]); m1 is the prediction."""

    def __init__(self, encoder: PvtV2Config | None = None, drop_path: float = 0.1) -> None:
        super().__init__()
        encoder = encoder or PVT_V2["b4"]
        self.encoder = Encoder(PvtV2(encoder, drop_path))
        self.edge_branch = EdgeBranchV2(WIDTH, HEADS)
        self.mask_decoder = MaskDecoderV2(WIDTH, HEADS)
        self.channel_align = nn.ModuleList(
            ChannelAlign(dim, WIDTH) for dim in reversed(encoder.dims)
        )
        for branch in (self.edge_branch, self.mask_decoder, self.channel_align):
            init_escnet_head(branch)

    def forward(self, image: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[B, 3, S, S] -> edge logits [B, 1, S, S] and mask logits at S/32, S/16, S/8, S."""
        check_image_sides(image)
        maps = self.encoder(image)
        aligned = [align(x) for align, x in zip(self.channel_align, reversed(maps))]
        edge = self.edge_branch(*aligned, image)
        return edge, self.mask_decoder(image, aligned, edge.sigmoid())


@register_model(
    "escnet-v2",
    description="ESCNet v2 with PVTv2-B4, 68.6 M parameters",
    input_size=416,
    postprocess="sigmoid",
    mask_logits=final_mask,
    act_modes=ESCNET_ACT_MODES,
    channels_last=True,
    loss="escnet",
    source=ESCNET_PAPER,
)
def escnet_v2() -> nn.Module:
    """ESCNet v2 at its released size."""
    return EscNetV2()
