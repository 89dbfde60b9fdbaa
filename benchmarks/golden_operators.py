"""Hashes of what every operator of the small models makes of a fixed input, preset by preset.

    python benchmarks/golden_operators.py

Writes tests/evaluation/golden_operators.json. Inputs are drawn by numpy, not by a network, so that
no float product stands before a decision: the hashes are the same on every processor.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import codtdq
from codtdq.methods import config_for, quantize_model
from codtdq.operators import QuantOperator, quant_operators
from codtdq.planning import list_presets

TARGET = Path(__file__).parent.parent / "tests" / "evaluation" / "golden_operators.json"
MODELS = ("cfrn-small", "escnet-small")
# without calibration: what a network gives depends on the processor
PRESETS = [name for name in list_presets() if not config_for(name).needs_calibration]
TOKENS = 12


def tokens_for(name: str, channels: int) -> Tensor:
    """Heavy-tailed tokens [1, TOKENS, C], some values exactly zero, the same for a name always."""
    draw = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    values = draw.standard_normal((1, TOKENS, channels)) * np.exp(
        draw.standard_normal((1, TOKENS, 1))
    )
    values[draw.random_sample(values.shape) < 0.1] = 0.0
    return torch.from_numpy(values.astype(np.float32))


def operator_hash(name: str, operator: QuantOperator) -> str:
    """Of W_hat and of x_hat of the fixed tokens, bit for bit."""
    digest = hashlib.sha256()
    x_hat = operator.input_scheme(tokens_for(name, operator.inputs))
    for tensor in (operator.weight_scheme.dequantize(), x_hat):
        digest.update((tensor + 0.0).contiguous().numpy().tobytes())  # -0 counts as 0
    return digest.hexdigest()[:12]


def hashes(model: str, preset: str) -> dict[str, str]:
    """By operator."""
    network = codtdq.create_model(model)
    quantized = quantize_model(network, config_for(preset, network))
    return {n: operator_hash(n, op) for n, op in quant_operators(quantized).items()}


def main() -> None:
    found = {m: {p: hashes(m, p) for p in PRESETS} for m in MODELS}
    TARGET.write_text(json.dumps(found, indent=0, separators=(",", ":")) + "\n")
    print(f"{sum(len(h) for m in found.values() for h in m.values())} hashes in {TARGET}")


if __name__ == "__main__":
    main()
