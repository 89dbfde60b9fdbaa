"""Give a blank scheme the buffers of a file: the only way by which stored numbers get in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from codtdq.errors import CheckpointError
from codtdq.schemes.base import Scheme
from codtdq.schemes.stored import unfit

Find = Callable[[str], Tensor | None]  # the tensor of a name, None where the file has none


def buffer_names(scheme: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """(full name, owner, own name) of every buffer that is stored."""
    return [
        (f"{path}.{leaf}" if path else leaf, owner, leaf)
        for path, owner in scheme.named_modules()
        for leaf, buffer in owner._buffers.items()
        if buffer is not None and leaf not in owner._non_persistent_buffers_set
    ]


def fill(scheme: Scheme, find: Find, channels: int) -> None:
    """Put the tensors of a file into a scheme, each checked for type, shape, range and finiteness.

    channels: of the operator's input. A buffer that a file does not hold is an empty one.
    """
    for name, owner, leaf in buffer_names(scheme):
        blank = owner._buffers[leaf]
        assert blank is not None
        found = find(name)
        if found is None:
            found = torch.empty(0, dtype=blank.dtype)
        if found.dtype != blank.dtype:
            raise CheckpointError(f"{name} is {found.dtype}; accepted: {blank.dtype}")
        owner._buffers[leaf] = found
    for path, owner in scheme.named_modules():
        _check(owner, path, channels)


def _check(owner: nn.Module, path: str, channels: int) -> None:
    expected = owner.expected_buffers(channels) if isinstance(owner, Scheme) else None
    for leaf, buffer in owner._buffers.items():
        if buffer is None or leaf in owner._non_persistent_buffers_set:
            continue
        name = f"{path}.{leaf}" if path else leaf
        if expected is not None:
            reason = unfit(buffer, expected[leaf])
        else:
            finite = not buffer.is_floating_point() or bool(torch.isfinite(buffer).all())
            reason = None if finite else "holds NaN or infinity"
        if reason is not None:
            reason = reason if buffer.numel() else f"is missing, or {reason}"
            raise CheckpointError(f"{name} {reason}")
