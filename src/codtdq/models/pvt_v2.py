"""PVTv2 pyramid vision transformers B0 to B5, under the key names of the public release.

Shapes: B batch, N = H * W tokens, C channels of the stage. Maps are made from tokens by a view, so
they are channels-last in memory and the convolutions that follow need no copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.declarations import Declaration
from codtdq.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PvtV2Config:
    """Widths and depths of a PVTv2 encoder, one entry per stage."""

    dims: tuple[int, int, int, int] = (64, 128, 320, 512)
    depths: tuple[int, int, int, int] = (3, 4, 6, 3)
    mlp_ratios: tuple[int, int, int, int] = (8, 8, 4, 4)
    heads: tuple[int, int, int, int] = (1, 2, 5, 8)
    sr_ratios: tuple[int, int, int, int] = (8, 4, 2, 1)  # side of the token reduction for k and v

    def __post_init__(self) -> None:
        for dim, heads in zip(self.dims, self.heads):
            if dim % heads:
                raise ConfigError(f"PVTv2: width {dim} is not a multiple of its {heads} heads")


PVT_V2: dict[str, PvtV2Config] = {
    "b0": PvtV2Config(dims=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    "b1": PvtV2Config(depths=(2, 2, 2, 2)),
    "b2": PvtV2Config(depths=(3, 4, 6, 3)),
    "b3": PvtV2Config(depths=(3, 4, 18, 3)),
    "b4": PvtV2Config(depths=(3, 8, 27, 3)),
    "b5": PvtV2Config(depths=(3, 6, 40, 3), mlp_ratios=(4, 4, 4, 4)),
}


def tokens_to_map(tokens: Tensor, height: int, width: int) -> Tensor:
    """View tokens [B, H*W, C] as a map [B, C, H, W] (channels-last in memory)."""
    return tokens.unflatten(1, (height, width)).permute(0, 3, 1, 2)


def map_to_tokens(maps: Tensor) -> Tensor:
    """View a map [B, C, H, W] as row-major tokens [B, H*W, C]."""
    return maps.flatten(2).transpose(1, 2)


class DropPath(nn.Module):
    """Drop a residual branch per sample while training; survivors are scaled by 1 / (1 - rate)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, ...] residual branch."""
        if self.rate == 0.0 or not self.training:
            return x
        keep = 1.0 - self.rate
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x * (x.new_empty(shape).bernoulli_(keep) / keep)


class OverlapPatchEmbed(nn.Module):
    """Strided convolution with overlapping windows, then LayerNorm over channels.

    role: quantization role of the convolution (only the first embed of a network has its own).
    """

    def __init__(
        self, in_dim: int, dim: int, *, kernel: int, stride: int, role: str = "conv"
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_dim, dim, kernel, stride, kernel // 2)
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.quantization = Declaration(roles={"proj": role})

    def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
        """[B, C_in, H', W'] -> tokens [B, H*W, C] with their H and W."""
        x = self.proj(x)
        height, width = x.shape[-2:]
        return self.norm(map_to_tokens(x)), height, width


class SpatialReductionAttention(nn.Module):
    """Multi-head attention whose keys and values come from a map reduced `sr` times per side."""

    quantization = Declaration(roles=dict.fromkeys(("q", "kv", "sr", "proj"), "attention"))

    def __init__(self, dim: int, heads: int, sr: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.sr = nn.Conv2d(dim, dim, sr, sr) if sr > 1 else None
        self.norm = nn.LayerNorm(dim, eps=1e-5) if sr > 1 else None

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """x: [B, N, C] tokens of an H x W map."""
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # [B, heads, N, C/heads]
        source = x
        if self.sr is not None and self.norm is not None:
            source = self.norm(map_to_tokens(self.sr(tokens_to_map(x, height, width))))
        kv = self.kv(source).unflatten(2, (2, self.heads, -1))
        k, v = kv.permute(2, 0, 3, 1, 4)  # each [B, heads, M, C/heads]
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class DepthwiseMix(nn.Module):
    """Depthwise 3x3 convolution on tokens: the position signal of PVTv2."""

    quantization = Declaration(roles={"dwconv": "depthwise"})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 3, 1, 1, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """x: [B, N, C] tokens of an H x W map."""
        return map_to_tokens(self.dwconv(tokens_to_map(x, height, width)))


class ConvMlp(nn.Module):
    """fc1, depthwise 3x3, GELU, fc2."""

    quantization = Declaration(roles={"fc1": "mlp", "fc2": "mlp"})

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = DepthwiseMix(hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """x: [B, N, C] tokens of an H x W map."""
        return self.fc2(self.act(self.dwconv(self.fc1(x), height, width)))


class PvtBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int, sr: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = SpatialReductionAttention(dim, heads, sr)
        self.drop_path = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = ConvMlp(dim, dim * mlp_ratio)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """x: [B, N, C] tokens of an H x W map."""
        x = x + self.drop_path(self.attn(self.norm1(x), height, width))
        return x + self.drop_path(self.mlp(self.norm2(x), height, width))


class PvtV2(nn.Module):
    """Four-stage encoder; returns the normalised map of every stage.

    Children are called patch_embed{n}, block{n} and norm{n}, n = 1..4, as in the release.
    drop_path: rate of the last block; it grows linearly from 0 over all blocks.
    """

    def __init__(self, config: PvtV2Config, drop_path: float = 0.0) -> None:
        super().__init__()
        self.config = config
        blocks_total = sum(config.depths)
        rates = iter(drop_path * i / max(blocks_total - 1, 1) for i in range(blocks_total))
        in_dim = 3
        for stage in range(4):
            dim = config.dims[stage]
            first = stage == 0
            embed = OverlapPatchEmbed(
                in_dim,
                dim,
                kernel=7 if first else 3,
                stride=4 if first else 2,
                role="first" if first else "conv",
            )
            blocks = nn.ModuleList(
                PvtBlock(
                    dim,
                    config.heads[stage],
                    config.mlp_ratios[stage],
                    config.sr_ratios[stage],
                    next(rates),
                )
                for _ in range(config.depths[stage])
            )
            self.add_module(f"patch_embed{stage + 1}", embed)
            self.add_module(f"block{stage + 1}", blocks)
            self.add_module(f"norm{stage + 1}", nn.LayerNorm(dim, eps=1e-6))
            in_dim = dim
        self.apply(_init_pvt)

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, S, S] -> maps [B, C_n, S/4, S/4], then S/8, S/16, S/32."""
        maps: list[Tensor] = []
        x = image
        for stage in range(1, 5):
            tokens, height, width = self.get_submodule(f"patch_embed{stage}")(x)
            for block in self.get_submodule(f"block{stage}").children():
                tokens = block(tokens, height, width)
            tokens = self.get_submodule(f"norm{stage}")(tokens)
            x = tokens_to_map(tokens, height, width)
            maps.append(x)
        return maps


def _init_pvt(module: nn.Module) -> None:
    """Truncated normal 0.02 for Linear, fan-out normal for convolutions, as PVT trains."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
