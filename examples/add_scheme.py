"""Add a scheme: how an input is represented. Operators, plans and checkpoints know it at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import codtdq
from codtdq.methods import Workbench
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.planning.config import QuantConfig
from codtdq.schemes.base import InputScheme
from codtdq.schemes.lowered import LoweredInput, Unlowered
from codtdq.schemes.weights import UniformWeight


class RowRange(InputScheme):
    """One symmetric range per token, found when it arrives."""

    kind = "row-range-example"  # the name in checkpoints, for ever

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.code_bits = bits

    def forward(self, tokens: Tensor) -> Tensor:
        """Return x_hat [B, N, C] of tokens [B, N, C]."""
        radius = tokens.abs().amax(-1, keepdim=True)
        step, zero = grid_of(-radius, radius, self.code_bits, True)
        return fake_shifted(tokens, step, zero, *code_limits(self.code_bits, True))

    def bits(self, channels: int) -> float:
        """Count all that travels: a float32 scale with every token."""
        return self.code_bits + 32 / channels

    def settings(self) -> dict[str, int]:
        """The keywords that build it again."""
        return {"bits": self.code_bits}

    def lower(self) -> LoweredInput | Unlowered:
        """No engine has ranges of a whole token."""
        return Unlowered("a range spans a whole token; engines take groups of at most 128 values")


@dataclass(frozen=True, kw_only=True)
class RowConfig(QuantConfig):
    """Nothing but the common fields."""


@codtdq.register_method(
    "rows-example",
    config=RowConfig,
    title="Ranges of tokens",
    source="an example",
    evidence="this project",
    ranges="dynamic",
    granularity="per token",
)
def rows(bench: Workbench) -> None:
    """Use the scheme for every input."""
    for site in bench.sites:
        inputs = None if site.act_bits is None else RowRange(site.act_bits)
        weight = None
        if site.weight_bits is not None:
            weight = UniformWeight.minmax(
                site.float_weight, site.weight_bits, group=site.weight_group
            )
        bench.install(site, inputs=inputs, weight=weight)


def main(out: Path) -> dict[str, float]:
    """Bits per activation, and whether a file gives the same outputs again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).eval()
    tokens = torch.randn(2, 10, 64)
    quantized = codtdq.quantize(model, RowConfig(name="rows-example"), calibration=[tokens])
    again = codtdq.load(codtdq.save(quantized, out / "rows"), model=model)
    with torch.no_grad():
        difference = float((again(tokens) - quantized(tokens)).abs().max())
    return {"bits": RowRange(4).bits(64), "difference": difference}


if __name__ == "__main__":
    print(main(Path("quantized")))
