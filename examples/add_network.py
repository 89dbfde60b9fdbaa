"""Add a network: a builder under a name, known to every command through `codtdq --import`.

codtdq --import examples/add_network.py eval --model reed-net --untrained --method cod-tdq
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

import codtdq
from codtdq.data import open_dataset


class ReedNet(nn.Module):
    """Three convolutions, of which the second is depthwise."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 7, stride=4, padding=3)
        self.local = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.head = nn.Conv2d(dim, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """[B, 3, S, S] -> mask logits [B, 1, S, S]."""
        x = self.stem(image)
        logits = self.head(x + self.local(F.gelu(x)))
        return F.interpolate(logits, image.shape[-2:], mode="bilinear", align_corners=False)


@codtdq.register_model("reed-net", description="three convolutions", input_size=64)
def reed_net() -> nn.Module:
    """The builder; released weights come in by `create_model("reed-net", checkpoint=FILE)`."""
    return ReedNet()


def main() -> dict[str, float]:
    """Scores with random weights on synthetic scenes."""
    model = codtdq.create_model("reed-net", pretrained=False)
    quantized = codtdq.quantize(model, "cod-tdq")
    return codtdq.evaluate(quantized, open_dataset("camosynth/test-easy", limit=4)).metrics


if __name__ == "__main__":
    print(main())
