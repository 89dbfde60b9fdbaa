"""Float weights in a byte each: blocks of 64 values with a range, as `numerics.floats` has them.

What a file decodes to *is* the float network that it holds: rounded once, when it was written. A
tensor `name` is stored as `name#block8.codes` (uint8, in the tensor's shape), `name#block8.low` and
`name#block8.step` (float32 [blocks]): 9 bits a value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from codtdq.errors import CheckpointError
from codtdq.numerics.floats import BLOCK, BlockFloats, encode_floats

CODES, LOW, STEP = (f"#block8.{part}" for part in ("codes", "low", "step"))


def encode(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The stored entries of a tensor; one shorter than a block, or without a span, stays as it is.

    tensor: float, finite.
    """
    blocks = encode_floats(tensor) if tensor.numel() >= BLOCK else None
    if blocks is None:
        return {name: tensor.float()}
    codes = blocks.codes.reshape(tensor.shape)
    return {name + CODES: codes, name + LOW: blocks.low, name + STEP: blocks.step}


def decode(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of stored entries, blocks in float32; others pass unchanged."""
    tensors: dict[str, Tensor] = {}
    for key, value in entries.items():
        if key.endswith(CODES):
            name = key.removesuffix(CODES)
            tensors[name] = _decoded(name, value, entries)
        elif not key.endswith((LOW, STEP)):
            tensors[key] = value
        elif key.removesuffix(LOW).removesuffix(STEP) + CODES not in entries:
            raise CheckpointError(f"{key} has no codes beside it")
    return tensors


def _decoded(name: str, codes: Tensor, entries: Mapping[str, Tensor]) -> Tensor:
    blocks = -(-codes.numel() // BLOCK)
    for part in (LOW, STEP):
        found = entries.get(name + part)
        if found is None or found.dtype != torch.float32 or found.shape != (blocks,):
            shape = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise CheckpointError(f"{name + part} is {shape}; accepted: float32 [{blocks}]")
    if codes.dtype != torch.uint8:
        raise CheckpointError(f"{name + CODES} is {codes.dtype}; accepted: uint8")
    low, step = entries[name + LOW], entries[name + STEP]
    return BlockFloats(codes.flatten(), low, step, codes.shape).decode()
