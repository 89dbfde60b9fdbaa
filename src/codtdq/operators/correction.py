"""Linear I/O correction: after conversion, match each Linear's outputs on calibration rows (S1.1).

`bias` moves the mean; `affine` also fits one slope per output channel by least squares. Both fold
into what is stored anyway: the slope into the weight scales, the offset into the bias.
"""

from __future__ import annotations

import torch
from torch import nn

from codtdq.operators.calibration import PairReservoir
from codtdq.operators.quantized import QuantLinear
from codtdq.schemes.symmetric import SymmetricWeight

SLOPE_LIMITS = (0.5, 2.0)  # a slope outside comes from noise, not from quantization


def correct_outputs(model: nn.Module, pairs: dict[str, PairReservoir], mode: str) -> None:
    """Apply `mode` ("bias" or "affine") to every QuantLinear with calibration rows."""
    for name, module in model.named_modules():
        if isinstance(module, QuantLinear) and name in pairs and pairs[name].seen:
            _correct(module, pairs[name], mode)


def _correct(module: QuantLinear, pairs: PairReservoir, mode: str) -> None:
    x, wanted = pairs.rows()
    with torch.no_grad():
        got = module(x)
        slope = torch.ones_like(wanted[0])
        weight = module.weight_scheme
        if mode == "affine" and isinstance(weight, SymmetricWeight):
            spread = got - got.mean(0)
            power = spread.square().sum(0)
            fit = (spread * (wanted - wanted.mean(0))).sum(0) / power.clamp(min=1e-12)
            slope = torch.where(power > 1e-12, fit.clamp(*SLOPE_LIMITS), slope)
            weight.scale.mul_(slope.unsqueeze(-1))
            module.refresh()
        offset = wanted.mean(0) - slope * got.mean(0)
        bias = torch.zeros_like(offset) if module.bias is None else module.bias.float()
        dtype = wanted.dtype if module.bias is None else module.bias.dtype
        # got = Wx + b, so slope * got + offset = (slope * W) x + (slope * b + offset)
        module.bias = nn.Parameter((slope * bias + offset).to(dtype), requires_grad=False)
