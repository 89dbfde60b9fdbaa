"""What an operator needs so that a backend can execute it: shared by all quantized operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.numerics.acceleration import turned_off

Executor = Callable[[Tensor], Tensor]  # what forward does, on a float32 input


class BackedOperator(nn.Module):
    """An operator that computes itself, simulated, unless a backend does it."""

    listener: Any  # called after each quantization; None while nobody listens
    # a backend's function that makes an executor from the codes; None: simulated, here
    backend: Callable[[Any], Executor] | None = None
    device_type = "cpu"  # of the inputs that the backend computes
    executor: Executor | None = None  # what it made; dropped whenever codes or scales may change
    # modules behind this operator whose work it does as well (a backend fused them; a tuple, so
    # that they stay where they are in the model), and a backend's codes of a shared input
    followers: tuple[nn.Module, ...] = ()
    shared: Any = None
    channels_last = False  # whether maps may be returned in channels-last order whatever came in

    @property
    def inputs(self) -> int:
        """Input channels."""
        return int(getattr(self, "in_features", getattr(self, "in_channels", 0)))

    def _native(self, x: Tensor) -> bool:
        """Whether the backend computes this call.

        Statistics, gradients and traces need the simulation; so does an input that does not fit,
        about which torch complains in its own words.
        """
        if self.backend is None or self.listener is not None or turned_off():
            return False
        if not x.numel() or x.device.type != self.device_type or not self._fits(x):
            return False
        if torch._C._get_tracing_state() or (self.followers and self.training):
            return False
        if torch.compiler.is_compiling() and not getattr(self.executor, "compiles", False):
            return False
        bias = self._parameters["bias"]
        learns = x.requires_grad or (bias is not None and bias.requires_grad)
        return not (learns and torch.is_grad_enabled())

    def _fits(self, x: Tensor) -> bool:
        return x.ndim > 0 and x.shape[-1] == self.inputs

    def _execute(self, x: Tensor) -> Tensor:
        """The backend's result, in the dtype of the input."""
        executor = self.ready()
        assert executor is not None
        return executor(x.float()).to(x.dtype)

    def ready(self) -> Executor | None:
        """The backend's executor, made anew if it was dropped; None without a backend."""
        if self.executor is None and self.backend is not None:
            self.executor = self.backend(self)
        return self.executor

    def _followed(self, y: Tensor) -> Tensor:
        """The result after the modules that this operator stands for."""
        for module in self.followers:
            y = type(module).forward(module, y)
        return y

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles make an executor of their own: it holds memory of the engine."""
        return self.__dict__ | {"executor": None, "whole": None}


class BackedConv(BackedOperator):
    """Convolutions: whether a map fits, and in which memory order the result goes back."""

    kernel_size: tuple[int, ...]
    padding: Any  # a tuple, or a word
    dilation: tuple[int, ...]

    def _batched_ndim(self) -> int:
        return len(self.kernel_size) + 2

    def _fits(self, x: Tensor) -> bool:
        if x.ndim != self._batched_ndim() or x.shape[1] != self.inputs:
            return False
        padding = self.padding
        if isinstance(padding, str):  # "same" is always enough, "valid" is none
            padding = self.kernel_size if padding == "same" else (0,) * len(self.kernel_size)
        sides = zip(x.shape[2:], padding, self.dilation, self.kernel_size)
        return all(n + 2 * pad > gap * (side - 1) for n, pad, gap, side in sides)

    def _ordered(self, result: Tensor, input: Tensor) -> Tensor:
        """The result in the memory order that the caller of `input` expects."""
        if self.channels_last:
            return result
        # tokens are channels-last inside; a caller who passed plain NCHW may call .view next
        if input.is_contiguous():
            return result.contiguous()
        if input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last):
            return result.contiguous(memory_format=torch.channels_last)
        return result
