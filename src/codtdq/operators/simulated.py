"""SimLinear, SimConv2d, SimConv1d: an operator whose input and weight a method quantizes.

Simulated: x_hat and W_hat are float32 values that lie on the method's grids. Each is-a Linear or
Conv of the same name and attributes. The method decides by what it plugs in: an `InputQuantizer`
and a `WeightStore`. Where both tell how the native engine computes them, a backend may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.operators.backed import BackedConv, BackedOperator
from codtdq.schemes.inputs import FloatInput, InputQuantizer
from codtdq.schemes.weights import FloatWeight, WeightStore

S = TypeVar("S", bound="SimOperator")


class SimOperator(BackedOperator):
    """What the three operators share."""

    input_quantizer: InputQuantizer
    weight_store: WeightStore
    role: str
    # called with (module, x, x_hat), both tokens [B, N, C], while somebody listens
    listener: Callable[[SimOperator, Tensor, Tensor], None] | None

    @classmethod
    def adopt(
        cls: type[S],
        module: nn.Module,
        *,
        inputs: InputQuantizer | None = None,
        weight: WeightStore | None = None,
        role: str = "",
    ) -> S:
        """Turn a float operator into this class, in place; None leaves that part float."""
        values = module._parameters.pop("weight")
        assert values is not None
        bias = module._parameters.get("bias")
        module.__class__ = cls
        assert isinstance(module, cls)
        if bias is not None:
            module.bias = nn.Parameter(bias.detach(), requires_grad=False)
        module.role, module.listener = role, None
        module.input_quantizer = FloatInput() if inputs is None else inputs
        module.weight_store = FloatWeight.of(values) if weight is None else weight
        module.refresh()
        return module

    @property
    def weight(self) -> Tensor:
        """W_hat in the shape of the float weight."""
        cached = self._buffers.get("weight_cache")
        return self.weight_store.dequantize() if cached is None else cached

    def refresh(self, *, cache: bool = True) -> None:
        """Rebuild the dequantized weight after its store changed, or drop it."""
        self.executor = None
        values = self.weight_store.dequantize() if cache else None
        self.register_buffer("weight_cache", values, persistent=False)

    def drop_weight_cache(self) -> None:
        """Forget the dequantized weight: a backend has a form of its own."""
        self.register_buffer("weight_cache", None, persistent=False)

    @property
    def channels(self) -> int:
        """Input channels."""
        return self.inputs

    def quantize_tokens(self, tokens: Tensor) -> Tensor:
        """x_hat of tokens [B, N, C], heard by the listener."""
        x_hat = self.input_quantizer(tokens)
        if self.listener is not None:
            self.listener(self, tokens, x_hat)
        return x_hat

    def _native(self, x: Tensor) -> bool:
        return not torch.compiler.is_compiling() and super()._native(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.executor = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.executor = None
        if self._buffers.get("weight_cache") is not None:
            self.refresh()

    def extra_repr(self) -> str:
        """What is quantized, and how."""
        return f"input {self.input_quantizer.kind}, weight {self.weight_store.kind}"


class SimLinear(SimOperator, nn.Linear):  # type: ignore[override]
    """Linear on what the method makes of its input."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., C] -> [..., O]."""
        if self._native(input):
            return self._execute(input)
        x_hat = self.quantize_tokens(linear_tokens(input)).view(input.shape)
        return self._followed(F.linear(x_hat, self.weight, self.bias))


class _SimConv(BackedConv, SimOperator):
    _conv_forward: Callable[..., Any]

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, *positions] -> [B, O, *positions]; padding comes after quantization."""
        if input.ndim == self._batched_ndim() - 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)  # unbatched, as torch takes it
        if self._native(input):
            result = self._execute(input)
        else:
            x_hat = self.quantize_tokens(conv_tokens(input))
            maps = x_hat.transpose(1, 2).unflatten(2, input.shape[2:])  # channels-last in memory
            result = self._followed(self._conv_forward(maps, self.weight, self.bias))
        return self._ordered(result, input)


class SimConv2d(_SimConv, nn.Conv2d):  # type: ignore[override]
    """Conv2d: each pixel's channels are a token."""


class SimConv1d(_SimConv, nn.Conv1d):  # type: ignore[override]
    """Conv1d: each position's channels are a token."""


_CLASSES: dict[type[nn.Module], type[SimOperator]] = {
    nn.Linear: SimLinear,
    nn.Conv2d: SimConv2d,
    nn.Conv1d: SimConv1d,
}


def sim_class_for(module: nn.Module) -> type[SimOperator]:
    """The simulated class of a float operator."""
    return next(sim for kind, sim in _CLASSES.items() if isinstance(module, kind))


def sim_operators(model: nn.Module) -> dict[str, SimOperator]:
    """The simulated operators of a model by name."""
    return {n: m for n, m in model.named_modules() if isinstance(m, SimOperator)}


def linear_tokens(x: Tensor) -> Tensor:
    """A Linear's input [B, ..., C] as tokens [B, N, C]; [C] and [B, C] have one position."""
    if x.ndim == 1:
        return x.reshape(1, 1, -1)
    return x.reshape(x.shape[0], -1, x.shape[-1]) if x.ndim != 2 else x.unsqueeze(1)


def conv_tokens(x: Tensor) -> Tensor:
    """A batched Conv input [B, C, *positions] as tokens [B, N, C], contiguous."""
    return x.flatten(2).transpose(1, 2).contiguous()


def input_tokens(module: nn.Module, x: Tensor) -> Tensor:
    """Any operator's input as tokens [B, N, C]."""
    if isinstance(module, nn.Linear):
        return linear_tokens(x)
    dimensions = 4 if isinstance(module, nn.Conv2d) else 3
    return conv_tokens(x if x.ndim == dimensions else x.unsqueeze(0))


def run_operator(module: nn.Module, tokens: Tensor, weight: Tensor, like: Tensor) -> Tensor:
    """What `module` gives for tokens [B, N, C] and another weight, its own bias included.

    like: the input that the tokens came from, for its shape. Conv geometry is the module's own, so
    grouped and depthwise convolutions are right by construction.
    """
    bias = module._parameters.get("bias")
    if isinstance(module, nn.Linear):
        return F.linear(tokens.view(like.shape), weight, bias)
    assert isinstance(module, nn.Conv2d | nn.Conv1d)
    maps = tokens.transpose(1, 2).unflatten(2, like.shape[2:])
    return module._conv_forward(maps, weight, bias)


__all__ = [
    "SimConv1d",
    "SimConv2d",
    "SimLinear",
    "SimOperator",
    "conv_tokens",
    "input_tokens",
    "linear_tokens",
    "run_operator",
    "sim_class_for",
    "sim_operators",
]
