"""Ask the processor itself what it has: the CPUID instruction, without a compiler.

A few bytes of machine code in memory of their own; where the system or the processor does not allow
that, there is no answer, which is no fault.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable
from typing import NamedTuple


class Registers(NamedTuple):
    """What CPUID leaves in eax, ebx, ecx and edx."""

    eax: int
    ebx: int
    ecx: int
    edx: int


Cpuid = Callable[[int, int], Registers]  # leaf, subleaf

# void f(uint32_t leaf, uint32_t subleaf, uint32_t out[4]), by the convention of System V
_CODE = bytes.fromhex(
    "53"  # push rbx: belongs to the caller
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "4989d0"  # mov r8, rdx
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8+4], ebx
    "41894808"  # mov [r8+8], ecx
    "4189500c"  # mov [r8+12], edx
    "5bc3"  # pop rbx; ret
)


def processor_cpuid() -> Cpuid | None:
    """Return the instruction as a function, or None where it cannot be called."""
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        return None
    try:
        memory = mmap.mmap(
            -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
    except OSError:  # memory that is both written and executed is forbidden here
        return None
    memory.write(_CODE)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
    function = kind(ctypes.addressof(ctypes.c_char.from_buffer(memory)))

    def cpuid(leaf: int, subleaf: int = 0) -> Registers:
        assert not memory.closed  # the code lives as long as its memory
        out = (ctypes.c_uint32 * 4)()
        function(leaf, subleaf, ctypes.addressof(out))
        return Registers(*out)

    return cpuid
