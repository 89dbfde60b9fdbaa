"""Read the compact forms of buffers (`numerics/compact.py`), each checked before it is used."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from codtdq.errors import CheckpointError
from codtdq.numerics.compact import CODES, INTEGERS, NARROW, PALETTE, VALUES

SHARED = 1 << 14  # elements of a table that layers may share: more than any layer counts


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
        if entry.endswith(NARROW) and tensor.dtype not in INTEGERS:
            raise CheckpointError(f"{entry} is {tensor.dtype}; accepted: small integers")
        if entry.endswith(CODES):
            _check_palette(name, tensor, entries.get(name + VALUES))
    return names


def _check_palette(name: str, codes: Tensor, values: Tensor | None) -> None:
    if values is None or values.ndim != 1 or not 1 <= values.numel() <= PALETTE:
        raise CheckpointError(f"{name} has no palette of 1 to {PALETTE} values")
    if codes.dtype != torch.uint8 or not values.is_floating_point():
        raise CheckpointError(f"{name} has a palette of {codes.dtype} codes, {values.dtype} values")
    if codes.numel() and int(codes.max()) >= values.numel():
        raise CheckpointError(f"{name} has codes beyond its palette")


def decode(
    name: str, entries: Mapping[str, Tensor], dtype: torch.dtype, known: dict[Hashable, Tensor]
) -> Tensor:
    """The tensor of a name; dtype: of integers that are stored in a smaller type.

    known: large tables that were decoded already, by their stored form: equal ones share memory.
    """
    if name in entries:
        return entries[name]
    parts = [entries[name + form] for form in (NARROW, CODES, VALUES) if name + form in entries]
    if parts[0].numel() < SHARED:
        return _decode(name, entries, dtype)
    key = (dtype, *((one.dtype, one.shape, one.numpy().tobytes()) for one in parts))
    if key not in known:
        known[key] = _decode(name, entries, dtype)
    return known[key].view(known[key].shape)  # a tensor of its own, for tied ones are one tensor


def _decode(name: str, entries: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    if name + NARROW in entries:
        if dtype.is_floating_point or dtype is torch.bool:
            raise CheckpointError(f"{name} holds integers; accepted: {dtype}")
        return entries[name + NARROW].to(dtype)
    return entries[name + VALUES][entries[name + CODES].long()]
