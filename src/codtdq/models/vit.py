"""DINOv2's vision transformer: patches of 14 pixels, a class token, layer scale.

DINOv2: Learning Robust Visual Features without Supervision (Oquab et al., TMLR 2024). Layers and
their order are the original's; query, key and value are one product. The position table is that of
the 518-pixel release, 37 x 37; at another size it is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.declarations import Declaration
from codtdq.errors import ConfigError
from codtdq.models.swin import Mlp, tokens_to_map


@dataclass(frozen=True, kw_only=True)
class VitConfig:
    """Sizes of a vision transformer."""

    dim: int
    depth: int
    num_heads: int
    patch_size: int = 14
    table_side: int = 37  # cells of the position table, per side
    mlp_ratio: float = 4.0


VIT_S14 = VitConfig(dim=384, depth=12, num_heads=6)


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return x * self.gamma


class Attention(nn.Module):
    """Multi-head self-attention over all tokens."""

    quantization = Declaration(roles={"qkv": "attention", "proj": "attention"})

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(d)) v; [B, T, C] -> [B, T, C]."""
        b, tokens, c = x.shape
        qkv = self.qkv(x).view(b, tokens, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, heads, T, d]
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, tokens, c))


class VitBlock(nn.Module):
    """Attention and MLP behind norms, each scaled and added."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.ls1 = LayerScale(dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.ls2 = LayerScale(dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchProjection(nn.Module):
    """Cut the image into patches and project each to a token."""

    quantization = Declaration(roles={"proj": "first"})

    def __init__(self, patch_size: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(3, dim, patch_size, stride=patch_size)

    def forward(self, image: Tensor) -> tuple[Tensor, int, int]:
        """[B, 3, H, W] -> tokens [B, h * w, C], h, w; sides are multiples of the patch."""
        height, width, patch = image.shape[-2], image.shape[-1], self.patch_size
        if height % patch or width % patch:
            raise ConfigError(
                f"the image is {height} x {width}; this network needs sides that are multiples "
                f"of {patch}: resize it"
            )
        x = self.proj(image)
        return x.flatten(2).transpose(1, 2), x.shape[2], x.shape[3]


class VisionTransformer(nn.Module):
    """Patches, positions and blocks; `forward` gives the maps after chosen blocks."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchProjection(config.patch_size, config.dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.dim))
        cells = config.table_side**2
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + cells, config.dim))  # class token first
        self.blocks = nn.ModuleList(
            VitBlock(config.dim, config.num_heads, config.mlp_ratio) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        self._kept_positions: tuple[tuple[Any, ...], Tensor] | None = None
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("embed") or name.endswith("token") or parameter.ndim == 2:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, image: Tensor, after: Sequence[int]) -> list[Tensor]:
        """[B, 3, H, W] -> maps [B, C, H/14, W/14] of the tokens after blocks `after` (from 1).

        The map after the last block has passed the final norm, the others are as the blocks leave
        them. The class token takes part in attention and is left out of the maps.
        """
        x, height, width = self.patch_embed(image)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self._positions(height, width)
        maps = []
        for count, block in enumerate(self.blocks, start=1):
            x = block(x)
            if count in after:
                seen = self.norm(x) if count == len(self.blocks) else x
                maps.append(tokens_to_map(seen[:, 1:].contiguous(), height, width))
        return maps

    def _positions(self, height: int, width: int) -> Tensor:
        """The position table at a grid, [1, 1 + h * w, C]; interpolated once unless it learns."""
        table = self.pos_embed
        if torch.is_grad_enabled() or table.is_inference() or torch.compiler.is_compiling():
            return self._interpolate(height, width)
        state = (table.data_ptr(), table._version, table.dtype, height, width)
        if self._kept_positions is None or self._kept_positions[0] != state:
            self._kept_positions = (state, self._interpolate(height, width))
        return self._kept_positions[1]

    def _interpolate(self, height: int, width: int) -> Tensor:
        side, dim = self.config.table_side, self.config.dim
        if (height, width) == (side, side):
            return self.pos_embed
        grid = self.pos_embed[:, 1:].view(1, side, side, dim).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, (height, width), mode="bicubic", align_corners=False)
        return torch.cat([self.pos_embed[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept_positions": None}
