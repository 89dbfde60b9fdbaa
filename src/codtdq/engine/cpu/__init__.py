"""The native engine: a small C++ library without torch, and the operators that call it.

`library` loads it and checks that both sides agree on every constant; `operators` registers it
with torch; nothing here compiles anything.
"""

from codtdq.engine.cpu.library import (
    disabled,
    instruction_set,
    keep_memory,
    load,
    unavailable_reason,
)

__all__ = ["disabled", "instruction_set", "keep_memory", "load", "unavailable_reason"]
