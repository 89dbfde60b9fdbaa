"""ViT-COD: DINOv2 features, a branch for detail, and a decoder that is told where edges are.

A design of this project around a published encoder. Patches of 14 pixels say what and where an
animal is, but not where exactly it ends; a few convolutions on the image do, and both meet at
strides 8 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.declarations import Declaration
from codtdq.models.registry import register_model
from codtdq.models.vit import VIT_S14, VisionTransformer, VitConfig


class ConvNorm(nn.Module):
    """Convolution, batch norm and ReLU, which an engine computes in one pass."""

    def __init__(
        self, inputs: int, outputs: int, side: int = 3, *, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, side, stride=stride, padding=side // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(outputs)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H / stride, W / stride]."""
        return self.act(self.norm(self.conv(x)))


class Level(nn.Module):
    """Features of one depth at the decoder's width: norm over channels, then a projection."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, width, h, w]."""
        return self.proj(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Context(nn.Module):
    """A residual block that looks 7 x 7 cells around: depthwise convolution, then an MLP."""

    quantization = Declaration(roles={"expand": "mlp", "reduce": "mlp"})

    def __init__(self, width: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(width, width, 7, padding=3, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, 2 * width, 1)
        self.act = nn.GELU()
        self.reduce = nn.Conv2d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C, h, w]."""
        return x + self.reduce(self.act(self.expand(self.norm(self.around(x)))))


class Detail(nn.Module):
    """What patches lose: features of the image itself at strides 4 and 8."""

    quantization = Declaration(roles={"stem": "first"})

    def __init__(self, quarter: int, eighth: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, quarter, stride=2)
        self.quarter = ConvNorm(quarter, quarter, stride=2)
        self.depthwise = ConvNorm(quarter, quarter, stride=2, groups=quarter)
        self.eighth = ConvNorm(quarter, eighth, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 3, H, W] -> [B, quarter, H/4, W/4] and [B, eighth, H/8, W/8]."""
        fine = self.quarter(self.stem(image))
        return fine, self.eighth(self.depthwise(fine))


class Decoder(nn.Module):
    """Maps of several depths and the image -> logits of mask, edge and coarse mask."""

    def __init__(self, dim: int, levels: int, width: int) -> None:
        super().__init__()
        fine, middle = width // 4, width // 2  # channels of the detail at strides 4 and 8
        wide, narrow = 3 * width // 4, 3 * width // 8  # channels after the meeting there
        self.levels = nn.ModuleList(Level(dim, width) for _ in range(levels))
        self.mix = ConvNorm(levels * width, width, 1)
        self.context = nn.Sequential(Context(width), Context(width))
        self.coarse = nn.Conv2d(width, 1, 1)
        self.detail = Detail(fine, middle)
        self.fuse8 = ConvNorm(width + middle, wide)
        self.fuse4 = ConvNorm(wide + fine, narrow)
        self.edge = ConvNorm(narrow, fine // 2)
        self.edge_logits = nn.Conv2d(fine // 2, 1, 1)
        self.refine = ConvNorm(narrow + fine // 2, narrow)
        self.mask_logits = nn.Conv2d(narrow, 1, 1)
        self._initialise()

    def _initialise(self) -> None:
        """Variance-preserving convolutions; heads and residual branches that begin small."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d) and name.endswith(("logits", "coarse", "reduce")):
                nn.init.trunc_normal_(module.weight, std=0.05)

    def forward(self, maps: Sequence[Tensor], image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps [B, C, h, w] and image [B, 3, H, W] -> mask and edge [B, 1, H/4, W/4], coarse."""
        fine, middle = self.detail(image)
        levels = [level(each) for level, each in zip(self.levels, maps)]
        x = self.context(self.mix(torch.cat(levels, dim=1)))
        coarse = self.coarse(x)
        x = self.fuse8(torch.cat([_resize(x, middle), middle], dim=1))
        x = self.fuse4(torch.cat([_resize(x, fine), fine], dim=1))
        edge = self.edge(x)
        correction = self.mask_logits(self.refine(torch.cat([x, edge], dim=1)))
        return _resize(coarse, correction) + correction, self.edge_logits(edge), coarse


class VitCod(nn.Module):
    """Encoder and decoder."""

    def __init__(self, vit: VitConfig, *, after: Sequence[int], width: int) -> None:
        super().__init__()
        self.after = tuple(after)
        self.encoder = VisionTransformer(vit)
        self.decoder = Decoder(vit.dim, len(self.after), width)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, 3, H, W], sides multiples of 14 -> logits of the mask [B, 1, H, W], edge, coarse."""
        mask, edge, coarse = self.decoder(self.encoder(image, self.after), image)
        return _resize(mask, image), edge, coarse


def _resize(x: Tensor, like: Tensor) -> Tensor:
    """Bilinear, to the height and width of `like`."""
    return F.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)


@register_model(
    "vit-cod",
    description="DINOv2 ViT-S/14 with an edge-aware decoder at 448 x 448 (22.6 M parameters)",
    weights="vit-cod.safetensors",
    input_size=448,
    size_multiple=14,
    postprocess="sigmoid",
    channels_last=True,
    loss="vit-cod",
    source="encoder: Oquab et al., DINOv2, TMLR 2024; decoder: this project",
)
def vit_cod() -> nn.Module:
    """The encoder of DINOv2 at its small size; maps after a quarter, half, ... of its depth."""
    return VitCod(VIT_S14, after=(3, 6, 9, 12), width=128)
