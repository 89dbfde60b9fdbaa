"""Quantize a model of your own: any module with Linear or Conv layers, registered or not."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import codtdq


class Mlp(nn.Module):
    """Two linear maps; what they are for is declared where they are made."""

    quantization = codtdq.Declaration(roles={"fc1": "mlp", "fc2": "mlp"})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, C] -> [B, N, C]."""
        y: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return y


class PondNet(nn.Module):
    """A stem, one MLP on pixels as tokens, a mask head."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, stride=4)
        self.norm, self.mlp = nn.LayerNorm(dim), Mlp(dim)
        self.head = nn.Conv2d(dim, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """[B, 3, H, W] -> mask logits [B, 1, H, W]."""
        x = self.stem(image)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.mlp(self.norm(tokens))
        logits = self.head(tokens.transpose(1, 2).reshape(x.shape))
        return F.interpolate(logits, image.shape[-2:], mode="bilinear", align_corners=False)


def main(out: Path) -> dict[str, float]:
    """Relative output error of two methods."""
    torch.manual_seed(0)
    model = PondNet().eval()  # yours: with trained weights
    images = torch.rand(8, 3, 64, 64)  # yours: normalised as in training
    print(codtdq.plan(model, "cod-tdq"))
    errors = {}
    for name in ("cod-tdq", "cod-tdq-plus"):
        quantized = codtdq.quantize(model, name, calibration=[images])
        again = codtdq.load(codtdq.save(quantized, out / name), model=model)
        with torch.no_grad():
            wanted, found = model(images), again(images)
        errors[name] = float((found - wanted).norm() / wanted.norm())
    return errors


if __name__ == "__main__":
    print(main(Path("quantized")))
