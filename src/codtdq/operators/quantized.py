"""QuantLinear, QuantConv2d, QuantConv1d: an operator with packed weights and a quantized input.

Each is-a Linear or Conv of the same name and attributes, so that code which looks at a model goes
on working. All quantization state is buffers: packed codes, scales, fixed radii. The dequantized
weight is kept beside them as a cache that is never saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.numerics import ActivationResult, PackedWeight, quantize, quantize_weight
from codtdq.numerics.packing import NIBBLE_BITS, packed_width
from codtdq.numerics.weight import row_shape, scale_count
from codtdq.operators.backed import BackedConv, BackedOperator
from codtdq.planning.plan import Site

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
Q = TypeVar("Q", bound="QuantOperator")


class QuantOperator(BackedOperator):
    """What the three operators share. `site` says how weight and input are quantized."""

    site: Site
    compute_dtype: torch.dtype
    layout = "last"  # where the channels of the input are
    model_dtype: torch.dtype  # of the float weight: what code that asks for weight.dtype expects
    # called with (module, result) after each quantization; None while nobody listens
    listener: Callable[[nn.Module, ActivationResult], None] | None

    @classmethod
    def adopt(
        cls: type[Q],
        module: nn.Module,
        site: Site,
        *,
        compute_dtype: str = "fp32",
        radius: Tensor | None = None,
        empty: bool = False,
    ) -> Q:
        """Turn a float operator into this class, in place.

        The object stays the same, so hooks and references from elsewhere (lists, tied parents)
        stay valid and no float twin can be left behind.

        radius: fixed activation radii, for a static site.
        empty: leave the state unset; a checkpoint fills it.
        """
        weight = module._parameters.pop("weight")
        bias = module._parameters.get("bias")
        assert weight is not None
        module.__class__ = cls
        assert isinstance(module, cls)
        module.site, module.compute_dtype, module.listener = site, DTYPES[compute_dtype], None
        module.model_dtype = weight.dtype
        if bias is not None:
            module.bias = nn.Parameter(bias.detach(), requires_grad=False)
        if site.weight is None:
            module.register_buffer("weight_float", weight.detach())
        elif empty:
            module._store(_blank(site, weight.device), cache=False)
        else:
            module._store(quantize_weight(weight, site.weight), cache=True)
        if site.static:
            module.register_buffer("act_radius", _radius(site, radius, weight.device, empty))
        return module

    @property
    def inputs(self) -> int:
        """Input channels."""
        return self.site.inputs

    @property
    def weight(self) -> Tensor:
        """W_hat in the shape of the float weight and the dtype that the model has."""
        return self._dequantized().to(self.model_dtype)

    def _dequantized(self) -> Tensor:
        """W_hat in float32, from the cache if there is one."""
        if self.site.weight is None:
            weight = self._buffers["weight_float"]
            assert weight is not None
            return weight
        cached = self._buffers.get("weight_cache")
        return self.packed_weight().dequantize() if cached is None else cached

    def packed_weight(self) -> PackedWeight:
        """Codes and scales of the weight."""
        assert self.site.weight is not None
        packed, scale = self._buffers["weight_packed"], self._buffers["weight_scale"]
        assert packed is not None and scale is not None
        return PackedWeight(packed, scale, torch.Size(self.site.shape), self.site.weight)

    def refresh(self, *, cache: bool = True) -> None:
        """Rebuild the dequantized weight after its codes or scales changed, or drop it."""
        self.executor = None
        if self.site.weight is not None:
            weight = self.packed_weight().dequantize() if cache else None
            self.register_buffer("weight_cache", weight, persistent=False)

    def quantize_input(self, x: Tensor) -> ActivationResult:
        """Quantize an input as this operator does, with all statistics."""
        assert self.site.activation is not None
        radius = self._buffers.get("act_radius")
        return quantize(x, self.site.activation, layout=self.layout, radius=radius)

    def _input(self, x: Tensor) -> Tensor:
        if self.site.activation is None:
            return x.to(self.compute_dtype)
        result = self.quantize_input(x.float())  # x_hat is rounded once, to the compute dtype
        if self.listener is not None:
            self.listener(self, result)
        return result.x_hat.to(self.compute_dtype)

    def _weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        bias = self._parameters["bias"]
        return (
            self._dequantized().to(self.compute_dtype),
            None if bias is None else bias.to(self.compute_dtype),
        )

    def _store(self, weight: PackedWeight, *, cache: bool) -> None:
        self.register_buffer("weight_packed", weight.packed)
        self.register_buffer("weight_scale", weight.scale)
        self.refresh(cache=cache)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move with the model, but keep scales and radii in float32 when it is cast."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        self.executor = None
        device = next(iter(self.buffers())).device
        self.model_dtype = fn(torch.empty(0, dtype=self.model_dtype, device=device)).dtype
        return super()._apply(keep_dtype, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.executor = None
        if self._buffers.get("weight_cache") is not None:
            self.refresh()  # a cache of the old codes would go on being used

    def extra_repr(self) -> str:
        """The shape, then what is quantized."""
        weight = "float" if self.site.weight is None else f"W{self.site.weight.bits}"
        act = self.site.activation
        mode = "float" if act is None else f"A{act.bits} {act.mode}"
        return f"{'x'.join(map(str, self.site.shape))}, {weight}, {mode}"


class QuantLinear(QuantOperator, nn.Linear):  # type: ignore[override]
    """Linear on a quantized input with a quantized weight (Algorithm S1)."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., C] -> [..., O], in the dtype of the input."""
        if self._native(input):
            return self._execute(input)
        weight, bias = self._weight_and_bias()
        return self._followed(F.linear(self._input(input), weight, bias).to(input.dtype))


class _QuantConv(BackedConv, QuantOperator):
    layout = "first"
    _conv_forward: Callable[..., Any]

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, *positions] -> [B, O, *positions], in dtype and memory layout of the input.

        Padding comes after quantization, in whatever mode: a padded pixel has the range of the
        pixel that it repeats, and zeros are exact.
        """
        if input.ndim == self._batched_ndim() - 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)  # unbatched, as torch takes it
        if self._native(input):
            result = self._execute(input)
        else:
            weight, bias = self._weight_and_bias()
            result = self._conv_forward(self._input(input), weight, bias).to(input.dtype)
            result = self._followed(result)
        return self._ordered(result, input)


class QuantConv2d(_QuantConv, nn.Conv2d):  # type: ignore[override]
    """Conv2d on quantized tokens: each pixel's channels are a token."""


class QuantConv1d(_QuantConv, nn.Conv1d):  # type: ignore[override]
    """Conv1d on quantized tokens: each position's channels are a token."""


OPERATORS: dict[type[nn.Module], type[QuantOperator]] = {
    nn.Linear: QuantLinear,
    nn.Conv2d: QuantConv2d,
    nn.Conv1d: QuantConv1d,
}


def operator_for(module: nn.Module) -> type[QuantOperator]:
    """The quantized class of a float operator."""
    return next(quant for kind, quant in OPERATORS.items() if isinstance(module, kind))


def _blank(site: Site, device: torch.device) -> PackedWeight:
    assert site.weight is not None
    shape = torch.Size(site.shape)
    rows, taps, inputs = row_shape(shape)
    width = packed_width(taps * inputs, site.weight.bits)
    dtype = torch.uint8 if site.weight.bits <= NIBBLE_BITS else torch.int8
    scale = torch.zeros(rows, scale_count(shape, site.weight), device=device)
    packed = torch.zeros(rows, width, dtype=dtype, device=device)
    return PackedWeight(packed, scale, shape, site.weight)


def _radius(site: Site, radius: Tensor | None, device: torch.device, empty: bool) -> Tensor:
    if empty:
        assert site.activation is not None
        count = 1 if site.activation.mode == "per_tensor" else site.inputs
        return torch.zeros(count, device=device)
    assert radius is not None, "a static site needs calibrated radii"
    return radius.float()
