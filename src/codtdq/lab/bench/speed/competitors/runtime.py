"""What a competitor is once it is built: a function of images, and what there is to say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Runtime:
    """A network in somebody else's hands."""

    prepare: Callable[[Tensor], Any]  # images in the form that it takes; not part of its time
    forward: Callable[[Any], Any]  # to its outputs: a tensor, or all of them in a flat sequence
    what: str  # name and version
    precision: str
    files: Sequence[Path] = ()  # what one would ship; none: the checkpoint of the float network
    note: str = ""  # what else decides about its numbers, e.g. what it was calibrated on


@dataclass(frozen=True)
class Competitor:
    """A built candidate, or the reason why there is none."""

    runtime: Runtime | None
    run: Callable[[], object] | None = None  # one forward pass at the measured shape
    logits: Callable[[Tensor], Tensor] | None = None  # images [1, 3, s, s] to mask logits, float32
    reason: str = ""
    build_seconds: float = 0.0
    difference: float = 0.0  # of its mask logits from eager torch, relative to their norm

    @property
    def bytes(self) -> int | None:
        """Bytes of its files; None where it ships the float network's checkpoint."""
        if self.runtime is None or not self.runtime.files:
            return None
        return sum(file.stat().st_size for file in self.runtime.files)
