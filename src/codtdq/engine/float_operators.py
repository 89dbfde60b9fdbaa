"""Float operators that the CPU engine computes as well, because torch is slow at them.

Nothing is quantized here: the result is that of the module to rounding. A module declares
what it is `computed_as`; one that does not stays with torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codtdq.declarations import declaration_of
from codtdq.engine.cpu import library
from codtdq.engine.cpu.deform import deform_conv
from codtdq.engine.cpu.products import float_panels
from codtdq.engine.program.traced import Traced


def float_operators(model: nn.Module) -> dict[str, Any]:
    """The modules of a model that the engine can compute, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if declaration_of(module).computed_as in EXECUTORS
    }


def take_float_operators(model: nn.Module) -> tuple[str, ...]:
    """Let the engine compute them; returns their names."""
    found = float_operators(model)
    for module in found.values():
        kind = declaration_of(module).computed_as
        assert kind is not None  # by which it was found
        module.executor = EXECUTORS[kind](module)
    return tuple(found)


def release(model: nn.Module) -> None:
    """Undo `take_float_operators`."""
    for module in float_operators(model).values():
        module.executor = None


class DeformExecutor:
    """A deformable convolution with its weight laid out for rows of samples."""

    def __init__(self, module: Any) -> None:
        weight = module.weight.detach().float()  # [O, C, 3, 3]
        self._weight = weight.flatten(2).permute(2, 1, 0).flatten(0, 1).contiguous()  # [9 C, O]
        self._bias = module.bias.detach().float()
        self._panels: dict[str | None, Tensor] = {}  # by instruction set

    def __call__(self, x: Tensor, offsets: Tensor) -> Tensor | None:
        """The module's result, or None where torch has to compute it."""
        if isinstance(x, Traced) and isinstance(offsets, Traced):
            shape = (x.shape[0], self._weight.shape[1], *x.shape[2:])
            settings = {"weight": self._weight, "bias": self._bias}
            return x.recorder.record("deform3x3", (x, offsets), shape, **settings)
        learns = torch.is_grad_enabled() and (x.requires_grad or offsets.requires_grad)
        plain = x.dtype is offsets.dtype is torch.float32 and x.device.type == "cpu"
        if learns or not plain or library.turned_off() or not x.numel():
            return None
        if torch.compiler.is_compiling():
            found: Tensor = torch.ops.codtdq.deform_conv(x, offsets, self._weight, self._bias)
            return found
        if torch._C._get_tracing_state():
            return None
        used = library.instruction_set()
        if used not in self._panels:
            self._panels = {used: float_panels(self._weight)}
        return deform_conv(x, offsets, self._weight, self._bias, self._panels[used])

    def __deepcopy__(self, memo: object) -> DeformExecutor:
        return self  # of constants only


EXECUTORS = {"deform3x3": DeformExecutor}
