"""Where a result comes from: model hash, config, machine, versions."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch
from torch import nn

from codtdq.engine import backend_of
from codtdq.environment import environment
from codtdq.operators.record import architecture_of, is_quantized, record_of


def model_hash(model: nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of a model's state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).flatten()
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def provenance(model: nn.Module) -> dict[str, Any]:
    """JSON-ready facts about a model and the machine that runs it."""
    record = record_of(model) if is_quantized(model) else None
    backend = backend_of(model)
    return {
        "model": architecture_of(model),
        "model_sha256": model_hash(model),
        "config": record.config if record else None,
        "method": record.to_dict() if record else None,
        "execution": "fp32" if record is None else backend.execution if backend else "simulated",
        "backend": backend.to_dict() if backend else None,
        "environment": environment(),
    }


def execution_of(model: nn.Module) -> str:
    """How a model is executed, for people: native or simulated, how many operators, and why."""
    record = backend_of(model)
    if not is_quantized(model):
        return "float32"
    if record is None or not record.native:
        reason = "" if record is None else f" ({record.reason})"
        return f"simulated in PyTorch{reason}"
    native, simulated = len(record.native), len(record.fallbacks)
    text = f"native ({record.instruction_set}), {native} operators"
    if not simulated:
        return text
    (reason, count), *others = Counter(record.fallbacks.values()).most_common()
    more = f", and {simulated - count} for other reasons" if others else ""
    return f"{text}; {simulated} simulated ({reason}{more})"
