"""Tries a runtime in a process of its own: one that dies must not take the measurement along.

Kernels that a processor refuses (SIGILL where a virtual machine hides what AMX needs) or that fall
between two instruction sets (SIGSEGV under a switch that their library only half obeys) raise
nothing that could be caught.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from codtdq.errors import UnsupportedError

TIMEOUT = 600.0  # seconds

OPENVINO = """
import sys, numpy, openvino
path, threads, precision = sys.argv[1:]
settings = {"INFERENCE_NUM_THREADS": int(threads)}
if precision:
    settings["INFERENCE_PRECISION_HINT"] = precision
model = openvino.Core().compile_model(path, "CPU", settings)
model.create_infer_request().infer([numpy.zeros(model.inputs[0].shape, numpy.float32)])
"""
TORCH_BF16 = """
import torch
images = torch.randn(1, 64, 24, 24).bfloat16()
with torch.inference_mode():
    torch.nn.Conv2d(64, 64, 3).bfloat16()(images)
    torch.nn.Linear(64, 64).bfloat16()(images.flatten(2).transpose(1, 2))
"""


def try_openvino(path: Path, threads: int, precision: str) -> None:
    """Compile a file and run it once; raises where that process dies or fails."""
    run_apart(OPENVINO, str(path), str(threads), precision)


def try_torch_bf16() -> None:
    """Run a convolution and a linear layer in bfloat16."""
    run_apart(TORCH_BF16)


def run_apart(program: str, *words: str) -> None:
    """Run a program; raise with the signal that killed it, or the last line it wrote."""
    command = [sys.executable, "-c", program, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"it did not finish within {TIMEOUT:g} seconds") from None
    if done.returncode < 0:
        raise UnsupportedError(f"its process died of {signal.Signals(-done.returncode).name}")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise UnsupportedError(f"its process failed: {lines[-1]}")
