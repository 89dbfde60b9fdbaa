"""Lossless, compact forms of buffers: index tables and masks cost bytes, not words.

An encoded tensor is stored under its name and a suffix that says how to read it:
`name#narrow` holds integers in the smallest type that fits; `name#palette.codes` and
`name#palette.values` hold a float tensor with few distinct values (attention masks).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from codtdq.errors import CheckpointError

NARROW, CODES, VALUES = "#narrow", "#palette.codes", "#palette.values"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_MIN_SIZE = 64  # smaller tensors gain nothing
_PALETTE = 256  # values that a byte tells apart


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
            if values.numel() <= _PALETTE and not bool(torch.signbit(tensor[tensor == 0]).any()):
                return {name + CODES: codes.to(torch.uint8), name + VALUES: values}
    return {name: tensor}


def plain_name(entry: str) -> str:
    """The tensor that a stored entry belongs to."""
    for suffix in (NARROW, CODES, VALUES):
        if entry.endswith(suffix):
            return entry.removesuffix(suffix)
    return entry


def check_entries(entries: Mapping[str, Tensor]) -> set[str]:
    """The tensors that stored entries hold, each in one form, each form whole and in range."""
    names: set[str] = set()
    for entry, tensor in entries.items():
        name = plain_name(entry)
        if entry.endswith(VALUES):
            if name + CODES not in entries:
                raise CheckpointError(f"{entry} has no codes")
            continue
        if name in names:
            raise CheckpointError(f"{name} is stored in two forms")
        names.add(name)
        if entry.endswith(NARROW) and tensor.dtype not in _INTEGERS:
            raise CheckpointError(f"{entry} is {tensor.dtype}; accepted: small integers")
        if entry.endswith(CODES):
            _check_palette(name, tensor, entries.get(name + VALUES))
    return names


def _check_palette(name: str, codes: Tensor, values: Tensor | None) -> None:
    if values is None or values.ndim != 1 or not 1 <= values.numel() <= _PALETTE:
        raise CheckpointError(f"{name} has no palette of 1 to {_PALETTE} values")
    if codes.dtype != torch.uint8 or not values.is_floating_point():
        raise CheckpointError(f"{name} has a palette of {codes.dtype} codes, {values.dtype} values")
    if codes.numel() and int(codes.max()) >= values.numel():
        raise CheckpointError(f"{name} has codes beyond its palette")


def decode(name: str, entries: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The tensor of a name; dtype: of integers that are stored in a smaller type."""
    if name in entries:
        return entries[name]
    if name + NARROW in entries:
        if dtype.is_floating_point or dtype is torch.bool:
            raise CheckpointError(f"{name} holds integers; accepted: {dtype}")
        return entries[name + NARROW].to(dtype)
    return entries[name + VALUES][entries[name + CODES].long()]
