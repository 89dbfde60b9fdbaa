"""What `codtdq doctor` reports."""

from __future__ import annotations

from typing import Any

from codtdq.environment import environment


def examine() -> dict[str, dict[str, Any]]:
    """Environment, backends with the reason for their state, the GPU, and shipped weights."""
    from codtdq.engine.triton import device

    return {
        "environment": environment(),
        "backends": _backends(),
        "gpu": device.facts(),
        "weights": _weights(),
    }


def _backends() -> dict[str, str]:
    from codtdq.engine.cpu import library
    from codtdq.engine.cpu.backend import CpuBackend
    from codtdq.engine.triton import device

    reason = library.unavailable_reason()
    if reason is not None:
        engine, choice = f"not available: {reason}", f"reference, because cpu is not: {reason}"
    else:
        others = library.available_sets()
        others.remove(str(library.instruction_set()))
        also = f"; also here: {', '.join(others)}" if others else ""
        engine = f"available: {CpuBackend().describe()}{also} (select with {library.SWITCH}=NAME)"
        choice = "cpu for models on the CPU, operator by operator; the rest is simulated"
    no_gpu = device.unavailable_reason()
    return {
        "reference": "available: simulated in PyTorch (quantize, dequantize, float operator)",
        "cpu": engine,
        "triton": f"not available: {no_gpu}" if no_gpu else f"available: {device.describe()}",
        "auto": f"takes {choice}",
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
