"""Block sizes by kernel and shape: a committed table, so that the first call is not a search.

Rows are tried in order; the first whose limits hold is taken. Every row is compiled for sm_80,
sm_89 and sm_90 by the tests, without spills and within the shared memory of the smallest of them.
They were chosen by these bounds and by the occupancy they leave, not timed on a device: `tuned`
times them on the one at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch

TUNE = "CODTDQ_GPU_TUNE"  # "1": time the rows of the table on first use of a shape


class Block(NamedTuple):
    """Tile of one program, and how it is scheduled."""

    m: int  # tokens
    n: int = 32  # outputs, or channels
    slabs: int = 1  # of 32 channels, in one step of a product
    warps: int = 4
    stages: int = 2


# (kernel, least tokens, least outputs) -> block; least first that fits, from the top
PRODUCT: tuple[tuple[int, int, Block], ...] = (
    (8192, 96, Block(128, 128, slabs=2, warps=8, stages=3)),
    (8192, 48, Block(128, 64, slabs=2, warps=8, stages=3)),
    (2048, 48, Block(64, 64, slabs=4, warps=4, stages=3)),
    (2048, 0, Block(128, 32, slabs=2, warps=4, stages=3)),
    (0, 48, Block(32, 64, slabs=4, warps=4, stages=4)),
    (0, 0, Block(32, 32, slabs=2, warps=4, stages=4)),
)
DEPTHWISE: tuple[tuple[int, int, Block], ...] = (
    (2048, 64, Block(16, 64, warps=4)),
    (0, 0, Block(16, 32, warps=4)),
)

Table = tuple[tuple[int, int, Block], ...]


def block_for(table: Table, rows: int, outputs: int) -> Block:
    """The first row of a table whose limits a shape reaches."""
    for least_rows, least_outputs, block in table:
        if rows >= least_rows and outputs >= least_outputs:
            return block
    raise AssertionError("the last row of a table takes every shape")


def power_of_two(value: int) -> int:
    """The least power of two that is not below a size; Triton's tiles have such sides."""
    return 1 << max(value - 1, 0).bit_length()


_tuned: dict[Hashable, Block] = {}


def tuned(key: Hashable, table: Table, run: Callable[[Block], object]) -> Block:
    """The fastest block of a table for `run` on the current CUDA device, timed once per key."""
    if key not in _tuned:
        blocks = dict.fromkeys(block for _, _, block in table)
        _tuned[key] = min(blocks, key=lambda block: _milliseconds(lambda: run(block)))
    return _tuned[key]


def _milliseconds(run: Callable[[], object], repeats: int = 10) -> float:
    for _ in range(3):  # the first call compiles
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats
