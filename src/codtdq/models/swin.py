"""Swin transformer with the parameter names of the original release, for any window and size.

Patch merging sits at the end of a stage (`layers.0.downsample`), as in the released checkpoints.
The `attn_mask` buffers belong to the input size a network was built for; at any other size the
masks are computed once and cached, so one set of weights serves every input size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.declarations import Declaration

# Added to the logits of token pairs that the cyclic shift brings together; the released value.
MASKED_LOGIT = -100.0
# exp(-100) is a subnormal float32, which slows softmax and matmul on a CPU two- to threefold;
# at ten times the offset it is exactly 0, and no result changes by more than 1e-43.
_MASK_GAIN = 10.0


@dataclass(frozen=True, kw_only=True)
class SwinConfig:
    """Sizes of a Swin transformer; one entry of `depths` and `num_heads` per stage."""

    embed_dim: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_size: int = 7
    img_size: int = 224  # side for which the persistent attention masks are built
    patch_size: int = 4
    mlp_ratio: float = 4.0
    drop_path: float = 0.1  # of the last block; grows linearly from 0, active in training only
    # as released for detection: no mask is stored, and maps of one window are shifted as well
    dense: bool = False


SWIN_T = SwinConfig(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24))
SWIN_S = SwinConfig(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24))
SWIN_B = SwinConfig(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32))
SWIN_L = SwinConfig(embed_dim=192, depths=(2, 2, 18, 2), num_heads=(6, 12, 24, 48))


def relative_position_index(window: int) -> Tensor:
    """Row of the bias table for each pair of tokens in a window: int64 [N, N], N = window^2."""
    line = torch.arange(window)
    coords = torch.stack(torch.meshgrid(line, line, indexing="ij")).flatten(1)  # [2, N]
    dy, dx = coords[:, :, None] - coords[:, None, :] + (window - 1)
    return dy * (2 * window - 1) + dx


def window_partition(x: Tensor, window: int) -> Tensor:
    """Order a map by windows: [B, H, W, C] -> [B, nW, N, C]; sides are multiples of `window`."""
    b, h, w, c = x.shape
    x = x.view(b, h // window, window, w // window, window, c).transpose(2, 3)
    return x.reshape(b, (h // window) * (w // window), window * window, c)


def window_reverse(x: Tensor, window: int, height: int, width: int) -> Tensor:
    """Undo `window_partition`: [B, nW, N, C] -> [B, H, W, C]."""
    b, c = x.shape[0], x.shape[-1]
    x = x.view(b, height // window, width // window, window, window, c).transpose(2, 3)
    return x.reshape(b, height, width, c)


@lru_cache(maxsize=16)
def shift_mask(height: int, width: int, window: int, shift: int) -> np.ndarray:
    """Logit offsets, float32 [nW, N, N], that keep attention inside the regions of a shifted map.

    After the cyclic shift the last window of each axis holds two regions that are not neighbours
    in the image; pairs across regions get `MASKED_LOGIT`. The array is cached and shared (as
    numpy, so that no tensor of a tracing or inference mode is kept): do not modify it.
    """

    def regions(length: int) -> np.ndarray:
        position = np.arange(length)
        return (position >= length - window).astype(int) + (position >= length - shift)

    label = regions(height)[:, None] * 3 + regions(width)[None, :]
    label = label.reshape(height // window, window, width // window, window)
    label = label.transpose(0, 2, 1, 3).reshape(-1, window * window)  # [nW, N]
    apart = label[:, :, None] != label[:, None, :]
    return np.where(apart, np.float32(MASKED_LOGIT), np.float32(0.0))


class DropPath(nn.Module):
    """Stochastic depth: drop a residual branch per sample while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Scale each sample of x [B, ...] by 0 or 1 / (1 - rate); identity in eval mode."""
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        gate = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(keep)
        return x * gate.div_(keep)


class Mlp(nn.Module):
    """Two-layer perceptron with the exact GELU."""

    quantization = Declaration(roles={"fc1": "mlp", "fc2": "mlp"})

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.fc2(self.act(self.fc1(x)))


class WindowAttention(nn.Module):
    """Multi-head self-attention inside windows, with a learned relative position bias."""

    quantization = Declaration(roles={"qkv": "attention", "proj": "attention"})
    relative_position_index: Tensor

    def __init__(self, dim: int, window: int, num_heads: int) -> None:
        super().__init__()
        self.window = window
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * window - 1) ** 2, num_heads)
        )
        self.register_buffer("relative_position_index", relative_position_index(window))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self._kept_bias: tuple[tuple[Any, ...], Tensor | None] | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """softmax(q k^T / sqrt(d) + bias + mask) v in each window.

        x: [B, nW * N, C], tokens in window order (batch first, as per-image statistics need it).
        mask: [nW, N, N] offsets, or None.
        """
        b, tokens, c = x.shape
        n = self.window * self.window
        qkv = self.qkv(x).view(b * tokens // n, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [B * nW, heads, N, d]
        offsets = self._offsets(mask)
        if offsets.requires_grad:
            out = self._attend_with_bias_gradient(q, k, v, offsets)
        else:
            if mask is not None and b > 1:
                offsets = offsets.expand(b, *offsets.shape).flatten(0, 1)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=offsets, scale=self.scale)
        return self.proj(out.transpose(1, 2).reshape(b, tokens, c))

    def _offsets(self, mask: Tensor | None) -> Tensor:
        """Position bias plus mask: [1 or nW, heads, N, N]."""
        if mask is None:
            return self._bias(0)
        return torch.add(self._bias(len(mask)), mask.unsqueeze(1), alpha=_MASK_GAIN)

    def _bias(self, masked: int) -> Tensor:
        """Position bias [1, heads, N, N]; looked up anew while something is learned.

        masked: windows to whose mask it is added. It is kept from the second call of a kind on:
        who traces or records a run calls once, and a program has a bias of its own.
        """
        table = self.relative_position_bias_table
        if torch.is_grad_enabled() or table.is_inference() or torch.compiler.is_compiling():
            return self._look_up()
        state = (table.data_ptr(), table._version, table.dtype, masked)
        if self._kept_bias is None or self._kept_bias[0] != state:
            self._kept_bias = (state, None)
            return self._look_up()
        bias = self._kept_bias[1]
        if bias is None:
            bias = self._look_up()
            self._kept_bias = (state, bias)
        return bias

    def _look_up(self) -> Tensor:
        bias = F.embedding(self.relative_position_index, self.relative_position_bias_table)
        return bias.permute(2, 0, 1).unsqueeze(0).contiguous()

    def _attend_with_bias_gradient(
        self, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor
    ) -> Tensor:
        """The same maths in the open: the fused kernel gives the bias no gradient."""
        logits = (q * self.scale) @ k.transpose(-2, -1)
        per_image = logits.view(-1, offsets.shape[0], *offsets.shape[1:])
        return (per_image + offsets).softmax(-1).view_as(logits) @ v

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept_bias": None}


class SwinBlock(nn.Module):
    """Window attention and MLP with residuals; odd blocks work on the half-window shifted map."""

    # windows are padded after norm1: a rescaling of that norm leaves its value of zero here
    quantization = Declaration(fold_padding={"norm1": "pad_token"})
    attn_mask: Tensor | None
    pad_token: Tensor | None  # [C]; None pads with zeros

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        resolution: tuple[int, int],
        window: int,
        shifted: bool,
        mlp_ratio: float,
        drop_path: float,
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.window = window
        self.shifted = shifted
        self.dense = dense
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)
        self.built_size = _padded(*resolution, window)
        shift = 0 if dense else self._shift(*resolution)
        mask = torch.tensor(shift_mask(*self.built_size, window, shift)) if shift else None
        self.register_buffer("attn_mask", mask)
        self.register_buffer("pad_token", None)

    def _shift(self, height: int, width: int) -> int:
        """Cells to shift by; none where a window already spans a side, as in the original."""
        moves = self.shifted and (self.dense or min(height, width) > self.window)
        return self.window // 2 if moves else 0

    def _mask(self, height: int, width: int, shift: int, like: Tensor) -> Tensor:
        """The mask of a padded size: the loaded buffer if it is the built one."""
        if self.attn_mask is not None and (height, width) == self.built_size:
            return self.attn_mask
        return torch.from_numpy(shift_mask(height, width, self.window, shift)).to(like)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """[B, H * W, C] -> [B, H * W, C]."""
        x = x + self.drop_path(self._attend(self.norm1(x), height, width))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _attend(self, x: Tensor, height: int, width: int) -> Tensor:
        b, tokens, c = x.shape
        window, shift = self.window, self._shift(height, width)
        full_h, full_w = _padded(height, width, window)
        grid = x.view(b, height, width, c)
        if (full_h, full_w) != (height, width):
            grid = self._pad(grid, full_h, full_w)
        if shift:
            grid = grid.roll((-shift, -shift), (1, 2))
        windows = window_partition(grid, window)
        mask = self._mask(full_h, full_w, shift, x) if shift else None
        out = self.attn(windows.flatten(1, 2), mask).view(windows.shape)
        grid = window_reverse(out, window, full_h, full_w)
        if shift:
            grid = grid.roll((shift, shift), (1, 2))
        return grid[:, :height, :width].reshape(b, tokens, c)

    def _pad(self, grid: Tensor, full_h: int, full_w: int) -> Tensor:
        """[B, H, W, C] -> [B, full_h, full_w, C] with zeros, or with the padding token."""
        b, height, width, c = grid.shape
        if self.pad_token is None:
            return F.pad(grid, (0, 0, 0, full_w - width, 0, full_h - height))
        token = self.pad_token.to(grid)
        wide = torch.cat([grid, token.expand(b, height, full_w - width, c)], 2)
        return torch.cat([wide, token.expand(b, full_h - height, full_w, c)], 1)


def _padded(height: int, width: int, window: int) -> tuple[int, int]:
    """Both sides rounded up to multiples of the window."""
    return -(-height // window) * window, -(-width // window) * window


class PatchMerging(nn.Module):
    """Halve the map: concatenate each 2 x 2 neighbourhood, normalise, project 4C -> 2C."""

    quantization = Declaration(roles={"reduction": "linear"})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(4 * dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """[B, H * W, C] -> [B, ceil(H/2) * ceil(W/2), 2C]; odd sides are padded with zeros."""
        b, _, c = x.shape
        x = x.view(b, height, width, c)
        if height % 2 or width % 2:
            x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
        rows, cols = (height + 1) // 2, (width + 1) // 2
        # the released weights expect the neighbours column by column
        x = x.view(b, rows, 2, cols, 2, c).permute(0, 1, 3, 4, 2, 5).reshape(b, rows * cols, 4 * c)
        return self.reduction(self.norm(x))


class PatchEmbed(nn.Module):
    """Cut the image into patches, project each to a token and normalise it."""

    quantization = Declaration(roles={"proj": "first"})

    def __init__(self, patch_size: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(3, dim, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, image: Tensor) -> tuple[Tensor, int, int]:
        """[B, 3, H, W] -> tokens [B, h * w, C], h, w; sides are padded to whole patches."""
        height, width, patch = image.shape[-2], image.shape[-1], self.patch_size
        if height % patch or width % patch:
            image = F.pad(image, (0, -width % patch, 0, -height % patch))
        x = self.proj(image)
        return self.norm(x.flatten(2).transpose(1, 2)), x.shape[2], x.shape[3]


class SwinStage(nn.Module):
    """The blocks of one resolution, then patch merging (absent in the last stage)."""

    def __init__(self, blocks: Sequence[SwinBlock], downsample: PatchMerging | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x: Tensor, height: int, width: int) -> tuple[Tensor, int, int]:
        """[B, H * W, C] -> tokens after patch merging with their height and width."""
        for block in self.blocks:
            x = block(x, height, width)
        if self.downsample is None:
            return x, height, width
        return self.downsample(x, height, width), (height + 1) // 2, (width + 1) // 2


class SwinTransformer(nn.Module):
    """The patch embedding and the stages; `forward` gives every stage's output as a map."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config.patch_size, config.embed_dim)
        count = sum(config.depths)
        rates = [config.drop_path * block / max(count - 1, 1) for block in range(count)]
        side = -(-config.img_size // config.patch_size)
        stages = []
        for index, (depth, heads) in enumerate(zip(config.depths, config.num_heads)):
            dim = config.embed_dim * 2**index
            blocks = [
                SwinBlock(
                    dim,
                    heads,
                    resolution=(side, side),
                    window=config.window_size if config.dense else min(config.window_size, side),
                    shifted=position % 2 == 1,
                    mlp_ratio=config.mlp_ratio,
                    drop_path=rates.pop(0),
                    dense=config.dense,
                )
                for position in range(depth)
            ]
            last = index == len(config.depths) - 1
            stages.append(SwinStage(blocks, None if last else PatchMerging(dim)))
            side = -(-side // 2)
        shift_mask.cache_clear()  # the blocks have them now
        self.layers = nn.ModuleList(stages)
        self.apply(init_tokens)

    @property
    def feature_dims(self) -> tuple[int, ...]:
        """Channels of the maps that `forward` returns."""
        dims = [self.config.embed_dim * 2**i for i in range(len(self.layers))]
        return (*dims, dims[-1])

    def forward_tokens(self, image: Tensor) -> list[tuple[Tensor, int, int]]:
        """Patch-embedding output and each stage's output after patch merging, as tokens."""
        outputs = [self.patch_embed(image)]
        for stage in self.layers:
            outputs.append(stage(*outputs[-1]))
        return outputs

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> maps [B, C_i, h_i, w_i] (channels-last memory), shallow to deep."""
        return [tokens_to_map(*output) for output in self.forward_tokens(image)]


def tokens_to_map(x: Tensor, height: int, width: int) -> Tensor:
    """[B, H * W, C] -> [B, C, H, W] as a view, i.e. in channels-last memory."""
    return x.view(x.shape[0], height, width, x.shape[2]).permute(0, 3, 1, 2)


def init_tokens(module: nn.Module) -> None:
    """Truncated normal with deviation 0.02 for projections and position biases, zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, WindowAttention):
        nn.init.trunc_normal_(module.relative_position_bias_table, std=0.02)
