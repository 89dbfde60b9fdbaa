"""Building blocks that the ESCNet networks share.

Shapes: B batch, C channels, H x W map; every resize is bilinear with align_corners=False.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.declarations import Declaration
from codtdq.errors import DataError

# Grey of the (normalised) RGB input, as the texture cue uses it.
GREY_WEIGHTS = (0.2989, 0.587, 0.114)


def resize_to(x: Tensor, like: Tensor) -> Tensor:
    """Resize a map to the height and width of another."""
    size = like.shape[-2:]
    if x.shape[-2:] == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def check_image_sides(image: Tensor, multiple: int = 32, network: str = "ESCNet") -> None:
    """Raise DataError unless both sides of [B, 3, H, W] are multiples of `multiple`."""
    height, width = image.shape[-2:]
    if height % multiple or width % multiple:
        raise DataError(
            f"{network}: input is {height}x{width}; sides must be multiples of {multiple}: "
            "resize or pad the image"
        )


def image_tiles(image: Tensor, like: Tensor, *, by_columns: bool = False) -> Tensor:
    """Cut the image into contiguous tiles of the map's size and stack them as channels.

    image: [B, 3, s*H, s*W], like: [B, C, H, W] -> [B, 3*s*s, H, W], channel = colour*s*s +
    row*s + col of the tile; by_columns: (col*s + row)*3 + colour. This is not a pixel-unshuffle:
    neighbours stay neighbours.
    """
    height, width = like.shape[-2:]
    stride = image.shape[-1] // width
    tiles = image.unflatten(3, (stride, width)).unflatten(2, (stride, height))
    order = (0, 4, 2, 1, 3, 5) if by_columns else (0, 1, 2, 4, 3, 5)  # of [B, 3, sy, H, sx, W]
    return tiles.permute(order).flatten(1, 3)


def laplacian_texture(image: Tensor) -> Tensor:
    """Signed 5x5 Laplacian of the grey image, [B, 3, H, W] -> [B, 1, H, W].

    The kernel is ones with -24 in the centre, over 48, borders reflected; as a box sum:
    (sum of 25 - 25 * centre) / 48.
    """
    red, green, blue = GREY_WEIGHTS
    grey = red * image[:, 0:1] + green * image[:, 1:2] + blue * image[:, 2:3]
    local_mean = F.avg_pool2d(F.pad(grey, (2, 2, 2, 2), mode="reflect"), 5, stride=1)
    return (local_mean - grey) * (25.0 / 48.0)


def conv_bn_relu(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    """Convolution with bias (0), BatchNorm (1) and ReLU (2), size kept."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class ChannelLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of a map [B, C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise every pixel; a view when the map is channels-last in memory."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvBottleneck(nn.Module):
    """1x1 convolution, BatchNorm, ReLU, 3x3 convolution."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, hidden, 1, bias=False)
        self.bn = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, H, W] -> [B, C_out, H, W]."""
        return self.conv2(F.relu(self.bn(self.conv1(x))))


class GatedGelu(nn.Module):
    """GELU(a) * b of the halves (a, b) of the channels, [B, 2C, H, W] -> [B, C, H, W]."""

    quantization = Declaration(fused_as="gated_gelu")

    def forward(self, x: Tensor) -> Tensor:
        """[B, 2C, H, W] -> [B, C, H, W]."""
        gate, value = x.chunk(2, dim=1)
        return F.gelu(gate) * value


class GatedFeedForward(nn.Module):
    """project_out(GELU(a) * b), (a, b) = halves of a depthwise 3x3 of project_in(x); no biases."""

    quantization = Declaration(roles={"dwconv": "depthwise"})

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        hidden = channels * factor
        self.project_in = nn.Conv2d(channels, 2 * hidden, 1, bias=False)
        self.dwconv = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, groups=2 * hidden, bias=False)
        self.gate = GatedGelu()
        self.project_out = nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, C, H, W]."""
        return self.project_out(self.gate(self.dwconv(self.project_in(x))))


def split_heads(maps: Tensor, heads: int) -> Tensor:
    """View a map [B, C, H, W] as rows of channels per head, [B, heads, C/heads, H*W]."""
    return maps.flatten(2).unflatten(1, (heads, -1))


class ChannelAttention(nn.Module):
    """Attention between channels (ESCNet v1 "SA"), with a feed-forward part.

    softmax(q k^T / sqrt(d)) v per head, where q, k, v are [d, H*W]: the product runs over all
    positions and is not normalised, so the logits have a wide range.
    """

    quantization = Declaration(
        roles=dict.fromkeys(("conv1", "conv2", "conv3", "proj"), "attention")
    )

    def __init__(self, channels: int, heads: int, ffn_factor: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = ChannelLayerNorm(channels)
        self.norm2 = ChannelLayerNorm(channels)
        self.conv1 = self._projection(channels)  # q
        self.conv2 = self._projection(channels)  # k
        self.conv3 = self._projection(channels)  # v
        self.proj = nn.Conv2d(channels, channels, 1)
        self.ffn = GatedFeedForward(channels, ffn_factor)

    @staticmethod
    def _projection(channels: int) -> nn.Sequential:
        reduce = conv_bn_relu(channels, channels, 1)
        return nn.Sequential(*reduce, nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: [B, C, H, W]; mask: [B, 1, H, W] multiplies keys and values."""
        x = x + self._attend(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.conv1(x), self.conv2(x), self.conv3(x)
        if mask is not None:
            k, v = k * mask, v * mask
        q, k, v = (split_heads(part, self.heads) for part in (q, k, v))
        logits = q @ k.transpose(-2, -1) * q.shape[2] ** -0.5  # [B, heads, d, d]
        weights = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
        mixed = (weights @ v).flatten(1, 2).unflatten(2, x.shape[-2:])
        return F.dropout(self.proj(mixed), self.dropout, self.training)


class ChannelGate(nn.Module):
    """CBAM channel gate: sigmoid(mlp(average pool) + mlp(maximum pool))."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, channels, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> gated map."""
        gate = self.mlp(x.mean(dim=(2, 3))) + self.mlp(x.amax(dim=(2, 3)))
        return x * gate.sigmoid()[:, :, None, None]


class SpatialGate(nn.Module):
    """CBAM spatial gate: sigmoid of a 7x7 convolution on channel mean and maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> gated map."""
        summary = torch.cat((x.mean(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)), dim=1)
        return x * self.conv(summary).sigmoid()


class Cbam(nn.Module):
    """Channel gate, then spatial gate."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.channel_attention = ChannelGate(channels, hidden)
        self.spatial_attention = SpatialGate()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> gated map."""
        return self.spatial_attention(self.channel_attention(x))
