"""Small networks with every kind of operator that the converter must handle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import codtdq
from codtdq.declarations import Declaration


class Attention(nn.Module):
    quantization = Declaration(roles={"qkv": "attention", "proj": "attention"})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(torch.nn.functional.scaled_dot_product_attention(q, k, v))


class Mlp(nn.Module):
    quantization = Declaration(roles={"fc1": "mlp", "fc2": "mlp"})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class SmallNet(nn.Module):
    """Stem, depthwise conv, attention, MLP, conv1d, norms, a table and a mask: 8x8 images."""

    quantization = Declaration(roles={"stem": "first"})

    def __init__(self, dim: int = 48) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, padding_mode="reflect")
        self.gn = nn.GroupNorm(4, dim)
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim)
        self.norm2, self.mlp = nn.LayerNorm(dim), Mlp(dim)
        self.mix = nn.Conv1d(dim, dim, 3, padding=1)
        self.head = nn.Conv2d(dim, 1, 1)
        self.table = nn.Parameter(torch.randn(16, dim) * 0.1)
        self.register_buffer("index", torch.arange(100) % 7)
        self.register_buffer("mask", torch.where(torch.eye(20) > 0, -100.0, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.gn(self.depthwise(self.stem(x)))
        b, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2) + self.table[: h * w]
        t = t + self.attn(self.norm1(t))
        t = t + self.mlp(self.norm2(t))
        t = self.mix(t.transpose(1, 2))
        return self.head(t.reshape(b, c, h, w))


def small_net(seed: int = 0) -> SmallNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = SmallNet().eval()
        for norm in (model.gn, model.norm1, model.norm2):  # trained norms are not the identity
            nn.init.normal_(norm.weight, 1.0, 0.2)
            nn.init.normal_(norm.bias, 0.0, 0.2)
        return model


def images(count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def simulate(model, config="cod-tdq", calibration=None, **options):
    """Quantize on the reference backend: what the engine is compared with."""
    return codtdq.quantize(model, config, calibration=calibration, backend="reference", **options)
