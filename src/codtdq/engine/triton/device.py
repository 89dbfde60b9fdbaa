"""Whether kernels can run here, and where. Nothing is initialized before it is asked for."""

from __future__ import annotations

import importlib.util
import os

import torch

from codtdq.environment import install_hint

INTERPRET = "TRITON_INTERPRET"  # Triton's own switch: "1" runs kernels on the CPU, for tests
OLDEST = 80  # compute capability whose tensor cores multiply int8 as the kernels do
EXTRA = "gpu"


def interpreted() -> bool:
    """Whether Triton's interpreter takes the place of a device."""
    return os.environ.get(INTERPRET) == "1"


def unavailable_reason() -> str | None:
    """Why no kernel can run, or None."""
    if importlib.util.find_spec("triton") is None:
        return f"Triton is not installed: {install_hint(EXTRA)}"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    found = capability()
    if found < OLDEST:
        return f"the device is sm_{found}; the kernels need sm_{OLDEST} or newer"
    return None


def present() -> bool:
    """Whether kernels run on a device, not in the interpreter."""
    return not interpreted() and unavailable_reason() is None


def capability() -> int:
    """Compute capability of the current device: 89 for sm_89."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def target() -> torch.device:
    """Where tensors must be for the kernels."""
    return torch.device("cpu" if interpreted() else "cuda")


def describe() -> str:
    """The device in a few words."""
    return "triton, interpreted" if interpreted() else f"triton, sm_{capability()}"


def facts() -> dict[str, str]:
    """Whether Triton is installed and whether there is a device, a line for each."""
    if importlib.util.find_spec("triton") is None:
        installed = f"not installed: {install_hint(EXTRA)}"
    else:
        # its distribution has other names for some devices, so the module is asked
        import triton

        installed = f"installed: {triton.__version__}"
    if not torch.cuda.is_available():
        return {"triton": installed, "device": "none: torch sees no CUDA device"}
    return {"triton": installed, "device": f"{torch.cuda.get_device_name()}, sm_{capability()}"}
