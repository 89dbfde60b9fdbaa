"""What `codtdq doctor` reports."""

from __future__ import annotations

from typing import Any

from codtdq.environment import environment


def examine() -> dict[str, dict[str, Any]]:
    """Environment, backends with the reason for their state, and shipped weights."""
    return {
        "environment": environment(),
        "backends": {
            "reference": "available: simulated in PyTorch (quantize, dequantize, float operator)",
        },
        "weights": _weights(),
    }


def _weights() -> dict[str, str]:
    from codtdq.models import list_models, model_info
    from codtdq.models.weights import shipped_weights

    found = {}
    for name in list_models():
        file = model_info(name).weights
        if file is None:
            found[name] = "not shipped: pass --checkpoint with the released file"
        elif shipped_weights(file).is_file():
            found[name] = f"shipped ({shipped_weights(file).stat().st_size / 2**20:.1f} MiB)"
        else:
            found[name] = f"missing from this installation ({file})"
    return found
