"""Lossless, compact forms of buffers: index tables and masks cost bytes, not words.

An encoded tensor is stored under its name and a suffix that says how to read it:
`name#narrow` holds integers in the smallest type that fits; `name#palette.codes` and
`name#palette.values` hold a float tensor with few distinct values (attention masks).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NARROW, CODES, VALUES = "#narrow", "#palette.codes", "#palette.values"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_MIN_SIZE = 64  # smaller tensors gain nothing


def encode(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The stored entries of a tensor; a tensor that cannot shrink is its own entry."""
    tensor = tensor.detach().contiguous()
    if tensor.numel() < _MIN_SIZE:
        return {name: tensor}
    if tensor.dtype in (torch.int64, torch.int32, torch.int16):
        for dtype in _INTEGERS:
            info = torch.iinfo(dtype)
            small = info.bits < torch.iinfo(tensor.dtype).bits
            if small and int(tensor.min()) >= info.min and int(tensor.max()) <= info.max:
                return {name + NARROW: tensor.to(dtype)}
    if tensor.is_floating_point() and bool(tensor.isfinite().all()):
        sample = tensor.flatten()[:: max(1, tensor.numel() // 1024)]
        if sample.unique().numel() <= 16:  # cheap look before the full one
            values, codes = tensor.unique(return_inverse=True)
            if values.numel() <= 256 and not bool(torch.signbit(tensor[tensor == 0]).any()):
                return {name + CODES: codes.to(torch.uint8), name + VALUES: values}
    return {name: tensor}


def entry_names(entries: set[str]) -> set[str]:
    """The tensors that a set of stored entries holds."""
    names = set()
    for entry in entries:
        for suffix in (NARROW, CODES, VALUES):
            entry = entry.removesuffix(suffix)
        names.add(entry)
    return names


def decode(name: str, entries: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The tensor of a name, in the dtype that the model expects."""
    if name in entries:
        return entries[name]
    if name + NARROW in entries:
        return entries[name + NARROW].to(dtype)
    return entries[name + VALUES][entries[name + CODES].long()]


def stored_shape(name: str, entries: Mapping[str, Tensor]) -> torch.Size:
    """Shape of the tensor of a name, without decoding it."""
    stored = next(n for n in (name, name + NARROW, name + CODES) if n in entries)
    return entries[stored].shape
