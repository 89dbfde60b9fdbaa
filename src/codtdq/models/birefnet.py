"""BiRefNet: bilateral reference for high-resolution segmentation, with Swin-L or Swin-T.

Zheng et al., Bilateral Reference for High-Resolution Dichotomous Image Segmentation (CAAI AIR
2024). The encoder reads the image at two scales; the decoder reads tiles of the image beside the
features of every level. Parameter names are those of the release, so its files load strictly.

The tiles changed their order in November 2024 without a change of any key or shape. Files trained
before (COD, general, lite) need tiles by columns, later ones (dynamic, HR) tiles by rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from codtdq.models.birefnet_blocks import (
    DecoderBlock,
    LateralBlock,
    MaskHead,
    TileBlock,
    map_size,
    resize_aligned,
)
from codtdq.models.deform import ModulatedDeformConv
from codtdq.models.escnet_blocks import check_image_sides, image_tiles
from codtdq.models.registry import register_model
from codtdq.models.swin import (
    SWIN_L,
    SWIN_T,
    SwinConfig,
    SwinStage,
    SwinTransformer,
    init_tokens,
    tokens_to_map,
)

_SOURCE = "Zheng et al., Bilateral Reference for High-Resolution DIS, CAAI AIR 2024"
_ACT_MODES = dict.fromkeys(("conv", "depthwise", "first"), "per_token_group")
GRADIENT_CHANNELS = 16


@dataclass(frozen=True, kw_only=True)
class BiRefNetConfig:
    """Sizes of a BiRefNet; the defaults are those of all releases."""

    swin: SwinConfig
    inner: int = 64  # channels inside decoder blocks and tile blocks
    branch: int = 256  # channels of each branch of a deformable pyramid
    kernels: tuple[int, ...] = (1, 3, 7)  # of the deformable branches beside the first
    tiles_by_columns: bool = True  # order of the image tiles: see the head of this file


class BiRefNetEncoder(SwinTransformer):
    """Swin whose maps are taken before patch merging, each with a LayerNorm of its own."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        for index in range(len(config.depths)):
            self.add_module(f"norm{index}", nn.LayerNorm(config.embed_dim * 2**index))

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> maps [B, C_i, h_i, w_i] at strides 4, 8, 16, 32."""
        tokens, height, width = self.patch_embed(image)
        maps = []
        for index, stage in enumerate(self.layers):
            assert isinstance(stage, SwinStage)
            for block in stage.blocks:
                tokens = block(tokens, height, width)
            normed = self.get_submodule(f"norm{index}")(tokens)
            maps.append(tokens_to_map(normed, height, width))
            if stage.downsample is not None:
                tokens = stage.downsample(tokens, height, width)
                height, width = (height + 1) // 2, (width + 1) // 2
        return maps


class BiRefNetDecoder(nn.Module):
    """Coarse to fine: lateral maps, image tiles, and attention to predicted gradients."""

    def __init__(self, config: BiRefNetConfig, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.by_columns = config.tiles_by_columns
        inner = config.inner
        # widths of levels 4 to 1 and, once more halved, of the last map
        levels = (*reversed(widths), widths[0] // 2)
        tile_widths = (levels[0] // 8, *(width // 8 for width in levels[:4]))
        for block, (tile_width, stride) in enumerate(zip(tile_widths, (32, 16, 8, 4, 1))):
            tiles = TileBlock(3 * stride * stride, inner, tile_width)
            self.add_module(f"ipt_blk{5 - block}", tiles)
        for index in range(4):
            width, wider, n = levels[index + 1], levels[index] + tile_widths[index], 4 - index
            self.add_module(f"decoder_block{n}", decoder_block(config, wider, width))
            if n > 1:
                self.add_module(f"lateral_block{n}", LateralBlock(width))
                self.add_module(f"conv_ms_spvn_{n}", nn.Conv2d(width, 1, 1))
                gradient = (
                    nn.Conv2d(width, GRADIENT_CHANNELS, 3, padding=1),
                    nn.BatchNorm2d(GRADIENT_CHANNELS),
                    nn.ReLU(),
                )
                self.add_module(f"gdt_convs_{n}", nn.Sequential(*gradient))
                for use in ("pred", "attn"):
                    head = nn.Sequential(nn.Conv2d(GRADIENT_CHANNELS, 1, 1))
                    self.add_module(f"gdt_convs_{use}_{n}", head)
        self.conv_out1 = nn.ModuleList([MaskHead(levels[4], tile_widths[4])])

    def forward(
        self, image: Tensor, maps: list[Tensor], top: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Mask logits [B, 1, H, W]; in training also coarse masks and gradients, deep to fine.

        maps: of the encoder, fine to coarse; top: the squeezed deepest map.
        """
        masks, gradients = [], []
        x = top
        for n, lateral in zip((4, 3, 2, 1), (None, *reversed(maps[:3]))):
            if lateral is not None:
                entering = self.get_submodule(f"lateral_block{n + 1}")(lateral)
                x = resize_aligned(x, map_size(lateral)) + entering
            x = torch.cat((x, self._tiles(image, x, n + 1)), dim=1)
            x = self.get_submodule(f"decoder_block{n}")(x)
            if n == 1:
                break
            gradient = self.get_submodule(f"gdt_convs_{n}")(x)
            if self.training:
                masks.append(self.get_submodule(f"conv_ms_spvn_{n}")(x))
                gradients.append(self.get_submodule(f"gdt_convs_pred_{n}")(gradient))
            x = x * self.get_submodule(f"gdt_convs_attn_{n}")(gradient).sigmoid()
        return self.conv_out1[0](x, self._tiles(image, image, 1)), masks, gradients

    def _tiles(self, image: Tensor, like: Tensor, block: int) -> Tensor:
        tiles = image_tiles(image, like, by_columns=self.by_columns)
        return self.get_submodule(f"ipt_blk{block}")(tiles)


def decoder_block(config: BiRefNetConfig, in_channels: int, out_channels: int) -> DecoderBlock:
    """A block of the widths that a config asks for."""
    return DecoderBlock(
        in_channels, out_channels, inner=config.inner, branch=config.branch, kernels=config.kernels
    )


class BiRefNet(nn.Module):
    """The whole network."""

    def __init__(self, config: BiRefNetConfig) -> None:
        super().__init__()
        self.bb = BiRefNetEncoder(config.swin)
        widths = tuple(2 * dim for dim in self.bb.feature_dims[:4])  # two scales side by side
        squeeze = decoder_block(config, sum(widths), widths[-1])
        self.squeeze_module = nn.Sequential(squeeze)
        self.decoder = BiRefNetDecoder(config, widths)
        self.bb.apply(init_tokens)
        for part in (self.squeeze_module, self.decoder):
            _init_convolutions(part)

    def encode(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> maps [B, 2 C_i, h_i, w_i]: of the image, then of its half-size copy."""
        height, width = map_size(image)
        full = self.bb(image)
        half = self.bb(resize_aligned(image, (height // 2, width // 2)))
        return [torch.cat((x, resize_aligned(y, map_size(x))), dim=1) for x, y in zip(full, half)]

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, list[Tensor], list[Tensor]]:
        """[B, 3, H, W], sides multiples of 32 -> logits [B, 1, H, W].

        In training: (logits, coarse masks, gradient maps), the lists from stride 32 to 8.
        """
        check_image_sides(image, network="BiRefNet")
        maps = self.encode(image)
        context = [resize_aligned(x, map_size(maps[-1])) for x in maps]  # shallow first
        top = self.squeeze_module(torch.cat(context, dim=1))
        logits, masks, gradients = self.decoder(image, maps, top)
        return (logits, masks, gradients) if self.training else logits


def _init_convolutions(module: nn.Module) -> None:
    """Variance-preserving convolutions; offsets and modulation start mild."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            fan_in = math.prod(child.kernel_size) * child.in_channels
            nn.init.normal_(child.weight, std=math.sqrt(2.0 / fan_in))
            if child.bias is not None:
                nn.init.zeros_(child.bias)
    for child in module.modules():
        if isinstance(child, ModulatedDeformConv):
            for predictor in (child.offset_conv, child.modulator_conv):
                nn.init.normal_(predictor.weight, std=0.02)


LARGE = BiRefNetConfig(swin=replace(SWIN_L, window_size=12, dense=True, drop_path=0.2))
LITE = BiRefNetConfig(swin=replace(SWIN_T, dense=True, drop_path=0.2))


@register_model(
    "birefnet",
    description="BiRefNet with Swin-L, 220.2 M parameters: files of 2024 (COD, general, portrait)",
    input_size=1024,
    act_modes=_ACT_MODES,
    channels_last=True,
    source=_SOURCE,
)
def birefnet() -> nn.Module:
    """BiRefNet as released for COD in May 2024 and for general use in July 2024."""
    return BiRefNet(LARGE)


@register_model(
    "birefnet-lite",
    description="BiRefNet with Swin-T, 44.3 M parameters: files of 2024 (lite, lite-2K)",
    input_size=1024,
    act_modes=_ACT_MODES,
    channels_last=True,
    source=_SOURCE,
)
def birefnet_lite() -> nn.Module:
    """BiRefNet_lite as released in August 2024."""
    return BiRefNet(LITE)


@register_model(
    "birefnet-2025",
    description="BiRefNet with Swin-L, 220.2 M parameters: files of 2025 (dynamic, HR, matting)",
    input_size=1024,
    act_modes=_ACT_MODES,
    channels_last=True,
    source=_SOURCE,
)
def birefnet_2025() -> nn.Module:
    """BiRefNet with image tiles by rows, as its code has them since November 2024."""
    return BiRefNet(replace(LARGE, tiles_by_columns=False))
