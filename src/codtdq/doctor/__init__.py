"""What `codtdq doctor` reports."""

from __future__ import annotations

from typing import Any

from codtdq.doctor import amx
from codtdq.doctor.cpuid import processor_cpuid
from codtdq.environment import environment
from codtdq.native import SWITCH


def examine() -> dict[str, dict[str, Any]]:
    """Environment, backends with the reason for their state, the GPU, and shipped weights."""
    return {
        "environment": {**environment(), "amx": amx.describe(processor_cpuid())},
        "backends": _backends(),
        "gpu": _gpu(),
        "weights": _weights(),
    }


def _gpu() -> dict[str, str]:
    """Return Triton and the device. No GPU is no fault: models then run on the processor."""
    import torch

    from codtdq.engine.triton import device

    facts = device.facts()
    if torch.cuda.is_available():
        return facts
    if not facts["triton"].startswith("installed"):
        facts["triton"] = "not installed, and not needed without a GPU"
    return {**facts, "device": "none; models run on the CPU, which needs none"}


def _backends() -> dict[str, str]:
    from codtdq.engine.cpu import library
    from codtdq.engine.cpu.backend import CpuBackend

    reason = library.unavailable_reason()
    if reason is not None:
        engine, choice = f"not available: {reason}", f"reference, because cpu is not: {reason}"
    else:
        others = library.available_sets()
        others.remove(str(library.instruction_set()))
        also = f"; also here: {', '.join(others)}" if others else ""
        engine = f"available: {CpuBackend().describe()}{also} (select with {SWITCH}=NAME)"
        choice = "cpu for models on the CPU, operator by operator; the rest is simulated"
    return {
        "reference": "available: simulated in PyTorch (quantize, dequantize, float operator)",
        "cpu": engine,
        "triton": _triton(),
        "auto": f"takes {choice}",
    }


def _triton() -> str:
    import torch

    from codtdq.engine.triton import device

    if not torch.cuda.is_available() and not device.interpreted():
        return "for NVIDIA GPUs; there is none here, and nothing misses it"
    reason = device.unavailable_reason()
    return f"not available: {reason}" if reason else f"available: {device.describe()}"


def _weights() -> dict[str, str]:
    from codtdq.models import list_models, model_info
    from codtdq.models.weights import PACKED, shipped_weights

    found = {}
    for name in list_models():
        file = model_info(name).weights
        if file is None:
            found[name] = "not shipped: pass --checkpoint with the released file"
        elif shipped_weights(file).is_file():
            found[name] = f"shipped ({shipped_weights(file).stat().st_size / 2**20:.1f} MiB)"
        else:
            found[name] = f"missing from this installation ({file})"
    for name in PACKED:
        size = sum(file.stat().st_size for file in shipped_weights(name).glob("*.*"))
        found[name] = (
            f"shipped ({size / 2**20:.1f} MiB)" if size else "missing from this installation"
        )
    return found
