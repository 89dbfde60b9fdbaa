"""Whether AMX, Intel's matrix unit, is here and can be found by programs that look for it.

Some virtual machines announce AMX and hide the leaf that describes its tiles. Libraries built on
oneDNN then configure tiles of no size: they die of an illegal instruction, or do without AMX.
"""

from __future__ import annotations

from codtdq.doctor.cpuid import Cpuid

FEATURES, TILES = 7, 0x1D  # leaves
AMX_BITS = {"bf16": 22, "tile": 24, "int8": 25}  # of edx in leaf 7
MAIN_PALETTE = 1


def announced(cpuid: Cpuid) -> list[str]:
    """Return the parts of AMX that the feature bits promise."""
    if cpuid(0, 0).eax < FEATURES:
        return []
    edx = cpuid(FEATURES, 0).edx
    return [name for name, bit in AMX_BITS.items() if edx >> bit & 1]


def tiles_described(cpuid: Cpuid) -> bool:
    """Whether the leaf of the tiles names a palette with rows, as a program needs it."""
    if cpuid(0, 0).eax < TILES or cpuid(TILES, 0).eax < MAIN_PALETTE:
        return False
    palette = cpuid(TILES, MAIN_PALETTE)
    return palette.eax != 0 and palette.ecx != 0


def is_hidden(cpuid: Cpuid | None) -> bool:
    """Whether AMX is announced and its tiles are not described."""
    return cpuid is not None and "tile" in announced(cpuid) and not tiles_described(cpuid)


def describe(cpuid: Cpuid | None) -> str:
    """Return one line for `codtdq doctor`."""
    if cpuid is None:
        return "unknown: the processor cannot be asked here"
    parts = announced(cpuid)
    if "tile" not in parts:
        return "none on this processor"
    if is_hidden(cpuid):
        return (
            f"announced ({', '.join(parts)}), but this virtual machine hides CPUID leaf 0x1D: "
            "libraries built on oneDNN may die of an illegal instruction or run without it "
            "(docs/speed.md, AMX in virtual machines)"
        )
    return f"available: {', '.join(parts)}"
