"""What a timing has to say about the machine it was taken on."""

from __future__ import annotations

import os
from typing import Any

from codtdq.doctor import amx
from codtdq.doctor.cpuid import processor_cpuid
from codtdq.engine.cpu import library
from codtdq.environment import environment
from codtdq.errors import UnsupportedError
from codtdq.lab.bench.speed import hold

# What limits the instruction sets of torch and of the libraries inside it.
FP32_SWITCHES = {k: v for k, v in hold.SWITCHES["avx2"].items() if k != hold.ENGINE}


def require_engine() -> None:
    """Without the engine there is nothing to measure."""
    reason = library.unavailable_reason()
    if reason is not None:
        raise UnsupportedError(f"the native engine cannot run: {reason}")


def cores() -> int:
    """Return the cores that this process may use."""
    return int(environment()["cores"])


def default_threads() -> list[int]:
    """Return one thread and two, as far as there are cores."""
    return [count for count in (1, 2) if count <= cores()]


def machine() -> dict[str, Any]:
    """Return facts, JSON-ready."""
    facts = environment()
    chosen = {name: os.environ[name] for name in FP32_SWITCHES if name in os.environ}
    return {
        **{key: facts[key] for key in ("cpu", "cores", "platform", "python", "torch", "codtdq")},
        "fp32_instruction_set": facts["cpu_capability"],
        "native_instruction_set": library.instruction_set(),
        "native_available": library.available_sets(),
        "fp32_switches": chosen,
        "load": [round(value, 2) for value in os.getloadavg()]
        if hasattr(os, "getloadavg")
        else None,
        "notes": notes(),
    }


def notes() -> list[str]:
    """Return why the two sides of a ratio might not be alike."""
    found = []
    if amx.is_hidden(processor_cpuid()):
        found.append("AMX: " + amx.describe(processor_cpuid()))
    used, best = library.instruction_set(), library.available_sets()[:1]
    if used is None or used in best:
        return found
    missing = [f"{k}={v}" for k, v in FP32_SWITCHES.items() if k not in os.environ]
    if not missing:
        return found
    return [
        *found,
        f"the engine is held to {used}; for a like-for-like comparison run torch FP32 with "
        + " ".join(missing),
    ]
