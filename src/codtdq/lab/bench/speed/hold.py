"""Hold every candidate to one instruction set, each by its own switch, in a fresh process.

The switches are read when a library starts, so the command runs again as a child that has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ENGINE, ATEN, ONEDNN, MKL = (
    "CODTDQ_NATIVE",
    "ATEN_CPU_CAPABILITY",  # torch's own kernels, and what torch.compile generates
    "ONEDNN_MAX_CPU_ISA",  # oneDNN, in torch and in OpenVINO
    "MKL_ENABLE_INSTRUCTIONS",  # MKL in torch; on Intel processors only
)
SWITCHES: dict[str, dict[str, str]] = {
    "avx512-vnni": {
        ENGINE: "avx512-vnni",
        ATEN: "avx512",
        ONEDNN: "AVX512_CORE_VNNI",
        MKL: "AVX512_E1",
    },
    "avx2": {ENGINE: "avx2", ATEN: "avx2", ONEDNN: "AVX2", MKL: "AVX2"},
}
# processor flags that stand for more than a set has
ABOVE: dict[str, tuple[str, ...]] = {
    "avx512-vnni": ("avx512_bf16", "avx512_fp16", "amx_tile"),
    "avx2": ("avx_vnni", "avx512f", "amx_tile"),
}


def is_held(name: str, variables: Mapping[str, str] | None = None) -> bool:
    """Whether this process was started with the switches of a set."""
    variables = os.environ if variables is None else variables
    return all(variables.get(key) == value for key, value in SWITCHES[name].items())


def without_switches(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which everybody takes the best set there is."""
    return {key: value for key, value in variables.items() if key not in SWITCHES["avx2"]}


def run_held(words: Sequence[str], name: str) -> int:
    """Run a command of `codtdq` again with the switches set; returns its exit code."""
    command = [sys.executable, "-m", "codtdq", *words]
    sys.stdout.flush()
    return subprocess.run(command, env={**os.environ, **SWITCHES[name]}).returncode


def more_than(name: str, flags: Sequence[str] | None = None) -> list[str]:
    """Return the processor's flags beyond a set: where there are none, nobody needs holding."""
    found = processor_flags() if flags is None else flags
    return [flag for flag in ABOVE[name] if flag in found]


def processor_flags() -> list[str]:
    """Return what the system says the processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return next((line.split() for line in lines if line.startswith("flags")), [])
