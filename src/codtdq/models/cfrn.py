"""CFRN: Swin features, edge-enhancing convolutions and an implicit, continuous decoder.

Continuous Feature Representation for Camouflaged Object Detection (IEEE TIP 2025). Parameter
names and the order of operations are those of the public network, so its checkpoints load
strictly. The decoder samples with nearest upsampling on a constant grid of relative coordinates,
which equals the original's coordinate sampling.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.models.registry import register_model
from codtdq.models.swin import SwinConfig, SwinTransformer, init_tokens, tokens_to_map

EEM_CHANNELS = 32
_SOURCE = "Song et al., Continuous Feature Representation for COD, IEEE TIP 2025"
# S1.1: convolutions share ranges; per channel, or per tensor in presets that read it so
_ACT_MODES = dict.fromkeys(("conv", "depthwise", "first"), "per_channel")


class SpatialGatingUnit(nn.Module):
    """Multi-scale context: three strip-then-dilated branches on a 3x3 convolution."""

    # strip length and dilation of the dense convolution, per branch
    branches = ((7, 4), (11, 8), (21, 18))

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(dim, dim, 3, padding=1)
        for i, (strip, dilation) in enumerate(self.branches):
            row = nn.Conv2d(dim, dim, (1, strip), padding=(0, strip // 2), groups=dim)
            column = nn.Conv2d(dim, dim, (strip, 1), padding=(strip // 2, 0), groups=dim)
            dense = nn.Conv2d(dim, dim, 3, padding=dilation, dilation=dilation)
            self.add_module(f"conv{i}_1", row)
            self.add_module(f"conv{i}_2", column)
            self.add_module(f"conv{i}_3", dense)
        self.conv3 = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]; the name is the release's, nothing is multiplied."""
        x = self.conv0(x)
        total = x
        for i in range(len(self.branches)):
            branch = x
            for step in (1, 2, 3):
                branch = self.get_submodule(f"conv{i}_{step}")(branch)
            total = total + branch
        return self.conv3(total)


class EdgeEnhancement(nn.Module):
    """EEM: a residual context block, then a 1x1 bottleneck to the decoder's channels."""

    def __init__(self, dim: int, out_channels: int = EEM_CHANNELS, *, groups: int = 32) -> None:
        super().__init__()
        self.proj_1 = nn.Conv2d(dim, dim, 1)
        self.act_1 = nn.GELU()
        self.spatial_gating_unit = SpatialGatingUnit(dim)
        self.proj_2 = nn.Conv2d(dim, dim, 1)
        self.GN = nn.GroupNorm(groups, dim)
        self.proj_3 = nn.Conv2d(dim, 4 * dim, 1)
        self.act_3 = nn.GELU()
        self.proj_4 = nn.Conv2d(4 * dim, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 32, H, W]."""
        y = self.proj_2(self.spatial_gating_unit(self.act_1(self.proj_1(x))))
        return self.proj_4(self.act_3(self.proj_3(self.GN(y + x))))


def relative_offsets(source: int, target: int, like: Tensor) -> Tensor:
    """Offset of each target cell centre from its nearest source centre, in half source cells.

    With centres c_n(i) = (2i + 1) / n - 1 and s the nearest source cell:
    rel[i] = (c_target(i) - c_source(s)) * source, in [-1, 1]; exact for whole ratios.
    """
    cell = torch.arange(target, dtype=torch.float64)
    centre = (2 * cell + 1) * source / target  # from the border, in half source cells
    nearest = 2 * torch.floor(centre / 2) + 1
    return (centre - nearest).to(like)


class ImplicitFeatures(nn.Module):
    """Continuous representation of one level: relative position, Fourier features, values."""

    def __init__(self, channels: int = EEM_CHANNELS, *, unused_mlp: bool = False) -> None:
        super().__init__()
        # part of every released checkpoint, never used in the released configuration
        self.imnet = _released_imnet() if unused_mlp else None
        self.fc = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, feature: Tensor, size: tuple[int, int]) -> list[Tensor]:
        """[B, C, h, w] -> parts [B, H, W, 2 | C/2 | C/2 | C] at `size`, to be concatenated.

        phase_k = f[2k] rel_y + f[2k+1] rel_x; out = (rel, fc(f) * (cos, sin)(pi phase), f).
        """
        b, c, h, w = feature.shape
        rel_y = relative_offsets(h, size[0], feature).view(-1, 1, 1)
        rel_x = relative_offsets(w, size[1], feature).view(1, -1, 1)
        rel = torch.cat((rel_y.expand(*size, 1), rel_x.expand(*size, 1)), -1)
        amplitude = _upsample(self.fc(feature), size)
        feature = _upsample(feature, size)
        phase = (feature[..., 0::2] * rel_y + feature[..., 1::2] * rel_x) * math.pi
        cosine = amplitude[..., : c // 2] * phase.cos()
        sine = amplitude[..., c // 2 :] * phase.sin()
        return [rel.expand(b, *size, 2), cosine, sine, feature]


def _upsample(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Value of the nearest source cell at each target centre: [B, C, h, w] -> [B, H, W, C]."""
    if x.shape[-2:] != size:
        x = F.interpolate(x, size, mode="nearest-exact")
    return x.permute(0, 2, 3, 1)


def _released_imnet() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in ((1072, 512), (512, 256), (256, 256)):
        layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv1d(256, 1, 1))


class ImplicitDecoder(nn.Module):
    """All levels at the size of the finest, through one shared `ImplicitFeatures`."""

    def __init__(self, channels: int = EEM_CHANNELS, *, unused_mlp: bool = False) -> None:
        super().__init__()
        self.ifa = ImplicitFeatures(channels, unused_mlp=unused_mlp)

    def forward(self, levels: list[Tensor]) -> Tensor:
        """Levels [B, 32, h_i, w_i], the finest last -> [B, 66 * levels, H, W]."""
        size = (levels[-1].shape[-2], levels[-1].shape[-1])
        # one concatenation, channels last: half the copying, and the 1x1 head runs twice as fast
        parts = [part for level in levels for part in self.ifa(level, size)]
        return torch.cat(parts, -1).permute(0, 3, 1, 2)


class CfrnEncoder(SwinTransformer):
    """Swin with one extra LayerNorm per feature, numbered as in the release."""

    def __init__(self, config: SwinConfig, *, unused_classes: int = 0) -> None:
        super().__init__(config)
        first, second, third, *_, width = self.feature_dims
        if unused_classes:  # the ImageNet head travels in released checkpoints
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, unused_classes)
        self.norm1 = nn.LayerNorm(second)
        self.norm2 = nn.LayerNorm(third)
        self.norm3 = nn.LayerNorm(width)
        self.norm4 = nn.LayerNorm(width)
        self.norm5 = nn.LayerNorm(first)
        self.apply(init_tokens)

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> x1..x5: patch embedding, stages 0 and 1, the last stage, stage 2.

        x4 is the deepest map; x5, of the same shape, is the input of the last stage.
        """
        embed, stage0, stage1, stage2, stage3 = self.forward_tokens(image)
        order = (
            (self.norm5, embed),
            (self.norm1, stage0),
            (self.norm2, stage1),
            (self.norm3, stage3),
            (self.norm4, stage2),
        )
        return [tokens_to_map(norm(tokens), h, w) for norm, (tokens, h, w) in order]


class CfrnBackbone(nn.Module):
    """Holds the encoder under the name that released checkpoints use."""

    def __init__(self, encoder: CfrnEncoder) -> None:
        super().__init__()
        self.swin_encoder = encoder

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> x1..x5."""
        return self.swin_encoder(image)


class Cfrn(nn.Module):
    """The whole network.

    head_channels: outputs of the first two 1x1 convolutions of the mask head.
    groups: of every GroupNorm; must divide all feature widths.
    unused_weights: also build the parameters that a release carries but never uses.
    """

    def __init__(
        self,
        swin: SwinConfig,
        *,
        head_channels: tuple[int, int] = (330, 256),
        groups: int = 32,
        unused_weights: bool = True,
    ) -> None:
        super().__init__()
        encoder = CfrnEncoder(swin, unused_classes=1000 if unused_weights else 0)
        self.swin = CfrnBackbone(encoder)
        first, second, third, fourth, fifth = encoder.feature_dims
        self.eem1_1 = EdgeEnhancement(first, groups=groups)
        self.eem2_1 = EdgeEnhancement(second, groups=groups)
        self.eem3_1 = EdgeEnhancement(third, groups=groups)
        self.eem4_1 = EdgeEnhancement(fourth, groups=groups)
        self.eem5_1 = EdgeEnhancement(fifth, groups=groups)
        self.ND = ImplicitDecoder(unused_mlp=unused_weights)
        wide, narrow = head_channels
        self.imnet2 = nn.Sequential(
            nn.Conv2d(5 * (2 + 2 * EEM_CHANNELS), wide, 1),
            nn.Conv2d(wide, narrow, 1),
            nn.GroupNorm(groups, narrow),
            nn.GELU(),
            nn.Conv2d(narrow, narrow, 1),
            nn.GroupNorm(groups, narrow),
            nn.Conv2d(narrow, 1, 1),
        )
        self._init_convolutions()

    def _init_convolutions(self) -> None:
        """Variance-preserving convolutions and a mask head that starts near logit 0."""
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Conv1d)):
                fan_in = module.weight[0].numel()
                nn.init.trunc_normal_(module.weight, std=fan_in**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.imnet2.get_parameter("6.weight"), std=0.02)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 3, H, W], sides multiples of 32 -> logits [B, 1, H, W] and [B, 1, H/4, W/4]."""
        x1, x2, x3, x4, x5 = self.swin(image)
        b1, b2, b3 = self.eem1_1(x1), self.eem2_1(x2), self.eem3_1(x3)
        b4, b5 = self.eem4_1(x4), self.eem5_1(x5)
        mask = self.imnet2(self.ND([b5, b4, b3, b2, b1]))
        full = F.interpolate(mask, image.shape[-2:], mode="bilinear", align_corners=False)
        return full, mask


@register_model(
    "cfrn",
    description="CFRN with Swin-B, window 12, at 384 x 384 (194.6 M parameters)",
    input_size=384,
    postprocess="sigmoid-minmax",
    act_modes=_ACT_MODES,
    channels_last=True,
    loss="cfrn",
    source=_SOURCE,
)
def cfrn() -> nn.Module:
    """The public network: Swin-B at 384 pixels."""
    swin = SwinConfig(
        embed_dim=128,
        depths=(2, 2, 18, 2),
        num_heads=(4, 8, 16, 32),
        window_size=12,
        img_size=384,
        drop_path=0.1,
    )
    return Cfrn(swin)


@register_model(
    "cfrn-small",
    description="CFRN at a fifth of the width, 160 x 160, with weights in the package",
    input_size=160,
    postprocess="sigmoid-minmax",
    act_modes=_ACT_MODES,
    channels_last=True,
    loss="cfrn",
    weights="cfrn-small.safetensors",
    source=_SOURCE,
)
def cfrn_small() -> nn.Module:
    """The same modules and data flow, small enough to train and run on a laptop."""
    swin = SwinConfig(
        embed_dim=24,
        depths=(2, 2, 4, 2),
        num_heads=(2, 4, 8, 16),
        window_size=5,
        img_size=160,
        drop_path=0.05,
    )
    return Cfrn(swin, head_channels=(96, 64), groups=8, unused_weights=False)
