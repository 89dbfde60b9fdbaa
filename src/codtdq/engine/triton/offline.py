"""Compile launches for a GPU that is not there, and read what became of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from codtdq.engine.triton.launch import Launch
from codtdq.errors import CodtdqError

# shared memory that one block may ask for, in bytes, by compute capability
SHARED_LIMIT = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448}
TENSOR_CORE = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async)[\w.:]*\.s32\.s8\.s8")


@dataclass(frozen=True)
class Compiled:
    """Machine code of one variant and what the assembler says about it."""

    kernel: str
    capability: int
    ptx: str
    cubin: bytes
    registers: int
    spilled: int  # bytes of spill stores and loads
    shared: int  # bytes

    @property
    def tensor_core(self) -> int:
        """int8 tensor-core instructions in the code."""
        return len(TENSOR_CORE.findall(self.ptx))

    @property
    def fits(self) -> bool:
        """Whether a block's shared memory is within the device's limit."""
        return self.shared <= SHARED_LIMIT[self.capability]


def compile_for(launch: Launch, capability: int) -> Compiled:
    """Compile one launch for a compute capability (80, 89, 90, ...), without a device."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants, attributes = launch.signature()
    source = ASTSource(launch.kernel, types, constants, attributes)
    target = GPUTarget("cuda", capability, 32)
    built = triton.compile(source, target=target, options=launch.options)
    ptx, cubin = str(built.asm["ptx"]), bytes(built.asm["cubin"])
    registers, spilled = _assembled(ptx)
    name = launch.kernel.__name__
    return Compiled(name, capability, ptx, cubin, registers, spilled, int(built.metadata.shared))


def _assembled(ptx: str) -> tuple[int, int]:
    """(registers, spilled bytes) from an assembler that comes with Triton.

    There may be two of them, for older and for newer versions of PTX.
    """
    import triton

    target = re.search(r"^\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    reports = []
    for ptxas in sorted((Path(triton.__file__).parent / "backends/nvidia/bin").glob("ptxas*")):
        with tempfile.TemporaryDirectory(prefix="codtdq-ptx-") as folder:
            file = Path(folder) / "kernel.ptx"
            file.write_text(ptx)
            done = subprocess.run(
                [ptxas, "-v", f"--gpu-name={target[1]}", file, "-o", file.with_suffix(".cubin")],
                capture_output=True,
                text=True,
            )
        reports.append(done.stderr)
        registers = re.search(r"Used (\d+) registers", done.stderr)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        if registers is not None and spills is not None:
            return int(registers[1]), int(spills[1]) + int(spills[2])
    raise CodtdqError(f"no ptxas took the PTX for {target[1]}: {' '.join(reports).strip()}")
