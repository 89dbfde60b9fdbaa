"""The tensors of a checkpoint by their state-dict names, whatever form they are stored in."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from codtdq.checkpoint import codecs
from codtdq.errors import CheckpointError
from codtdq.numerics.floats import BLOCK, BlockFloats

FLOATS = ("floats#codes", "floats#low", "floats#step")
_DTYPES = (torch.uint8, torch.float32, torch.float32)


class StoredTensors:
    """What a file of tensors and its header say together; complete and sound once it exists."""

    def __init__(self, entries: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.entries = dict(entries)
        self.floats = split(meta["floats"], self.entries)
        self.aliases: dict[str, str] = dict(meta["aliases"])
        own = codecs.check_entries(self.entries)
        stored = own | set(self.floats)
        twice = sorted(own & set(self.floats)) or sorted(stored & set(self.aliases))
        if twice:
            raise CheckpointError(f"{twice[0]} is stored in two forms")
        lost = sorted(set(self.aliases.values()) - stored)
        if lost:
            raise CheckpointError(f"an alias names {lost[0]!r}, which is not stored")
        self.names = stored | set(self.aliases)
        self._tables: dict[Hashable, Tensor] = {}

    def get(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """A tensor, or None; dtype: of integers that are stored in a smaller type."""
        source = self.aliases.get(name, name)
        if source in self.floats:
            return self.floats[source].decode()
        if source not in self.names:
            return None
        return codecs.decode(source, self.entries, dtype, self._tables)


def join(floats: Mapping[str, BlockFloats]) -> dict[str, Tensor]:
    """All 8-bit blocks in three entries: many tiny ones would cost more header than data."""
    if not floats:
        return {}
    blocks = list(floats.values())
    parts = (
        torch.cat([block.codes for block in blocks]),
        torch.cat([block.low for block in blocks]),
        torch.cat([block.step for block in blocks]),
    )
    return dict(zip(FLOATS, parts))


def split(shapes: Mapping[str, list[int]], entries: dict[str, Tensor]) -> dict[str, BlockFloats]:
    """Cut the joined tensors apart again, and take them out of `entries`."""
    if not shapes:
        return {}
    if not set(FLOATS) <= set(entries):
        raise CheckpointError(f"{', '.join(FLOATS)} are missing")
    parts = [entries.pop(name) for name in FLOATS]
    if any(part.ndim != 1 or part.dtype != dtype for part, dtype in zip(parts, _DTYPES)):
        raise CheckpointError("the stored float blocks are no vectors of uint8 and float32")
    codes, low, step = parts
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    blocks = {name: -(-count // BLOCK) for name, count in counts.items()}
    if sum(counts.values()) != codes.numel() or not (
        sum(blocks.values()) == low.numel() == step.numel()
    ):
        raise CheckpointError("the stored float blocks do not fit their shapes")
    if not bool(torch.isfinite(low).all() & torch.isfinite(step).all()):
        raise CheckpointError("the stored float blocks hold NaN or infinity")
    result: dict[str, BlockFloats] = {}
    at = block_at = 0
    for name, shape in shapes.items():
        end, block_end = at + counts[name], block_at + blocks[name]
        result[name] = BlockFloats(
            codes[at:end].clone(),
            low[block_at:block_end].clone(),
            step[block_at:block_end].clone(),
            torch.Size(shape),
        )
        at, block_at = end, block_end
    return result
