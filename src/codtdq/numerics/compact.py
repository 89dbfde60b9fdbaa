"""Lossless, compact forms of buffers: index tables and masks cost bytes, not words.

An encoded tensor is stored under its name and a suffix that says how to read it:
`name#narrow` holds integers in the smallest type that fits; `name#palette.codes` and
`name#palette.values` hold a float tensor with few distinct values (attention masks).
"""

from __future__ import annotations

import torch
from torch import Tensor

NARROW, CODES, VALUES = "#narrow", "#palette.codes", "#palette.values"
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
PALETTE = 256  # values that a byte tells apart
_MIN_SIZE = 64  # smaller tensors gain nothing


def encode(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The stored entries of a tensor; a tensor that cannot shrink is its own entry."""
    tensor = tensor.detach().contiguous()
    if tensor.numel() < _MIN_SIZE:
        return {name: tensor}
    if tensor.dtype in (torch.int64, torch.int32, torch.int16):
        for dtype in INTEGERS:
            info = torch.iinfo(dtype)
            small = info.bits < torch.iinfo(tensor.dtype).bits
            if small and int(tensor.min()) >= info.min and int(tensor.max()) <= info.max:
                return {name + NARROW: tensor.to(dtype)}
    if tensor.is_floating_point() and bool(tensor.isfinite().all()):
        sample = tensor.flatten()[:: max(1, tensor.numel() // 1024)]
        if sample.unique().numel() <= 16:  # cheap look before the full one
            values, codes = tensor.unique(return_inverse=True)
            if values.numel() <= PALETTE and not bool(torch.signbit(tensor[tensor == 0]).any()):
                return {name + CODES: codes.to(torch.uint8), name + VALUES: values}
    return {name: tensor}
