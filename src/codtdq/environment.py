"""Facts about the machine and the software, for `doctor` and for every result file."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from codtdq._version import __version__

PACKAGES = ("torch", "numpy", "scipy", "safetensors", "pillow")


def install_hint(extra: str) -> str:
    """The command that installs what an extra of this package brings.

    It names the packages, not the extra, and so works from a checkout as well as from a wheel.
    """
    try:
        declared = metadata.requires("codtdq") or []
    except metadata.PackageNotFoundError:  # run from its source, never installed
        declared = []
    found = [line.split(";")[0].strip() for line in declared if f'extra == "{extra}"' in line]
    return "pip install " + (" ".join(f"'{one}'" for one in found) or f"'.[{extra}]'")


def environment() -> dict[str, Any]:
    """Versions, processor and threads, JSON-ready."""
    import torch

    return {
        "codtdq": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
