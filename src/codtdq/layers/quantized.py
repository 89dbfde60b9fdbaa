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

from codtdq.planning.plan import Site
from codtdq.quantizer import ActivationResult, PackedWeight, quantize, quantize_weight
from codtdq.quantizer.packing import NIBBLE_BITS, packed_width
from codtdq.quantizer.weight import row_shape, scale_count

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_MODULE_STATE = frozenset(vars(nn.Module()))
Q = TypeVar("Q", bound="QuantOperator")


class QuantOperator(nn.Module):
    """What the three operators share. `site` says how weight and input are quantized."""

    site: Site
    compute_dtype: torch.dtype
    layout = "last"  # where the channels of the input are
    # called with (module, result) after each quantization; None while nobody listens
    listener: Callable[[nn.Module, ActivationResult], None] | None

    @classmethod
    def from_float(
        cls: type[Q],
        module: nn.Module,
        site: Site,
        *,
        compute_dtype: str = "fp32",
        radius: Tensor | None = None,
        empty: bool = False,
    ) -> Q:
        """Take over a float operator.

        radius: fixed activation radii, for a static site.
        empty: leave the state unset; a checkpoint fills it.
        """
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        for key, value in vars(module).items():  # strides, paddings, features: all but tensors
            if key not in _MODULE_STATE:
                setattr(new, key, value)
        new.training = module.training
        new.site, new.compute_dtype, new.listener = site, DTYPES[compute_dtype], None
        weight = module._parameters["weight"]
        bias = module._parameters.get("bias")
        assert weight is not None
        new.register_parameter(
            "bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        )
        if site.weight is None:
            new.register_buffer("weight_float", weight.detach())
        else:
            new._store(_blank(site) if empty else quantize_weight(weight, site.weight))
        if site.static:
            new.register_buffer("act_radius", _radius(site, radius, weight.device, empty))
        return new

    @property
    def weight(self) -> Tensor:
        """W_hat in float32, in the shape of the float weight."""
        if self.site.weight is None:
            return self._buffers["weight_float"]  # type: ignore[return-value]
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
        result = self.quantize_input(x)
        if self.listener is not None:
            self.listener(self, result)
        return result.x_hat.to(self.compute_dtype)

    def _weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        bias = self._parameters["bias"]
        return (
            self.weight.to(self.compute_dtype),
            None if bias is None else bias.to(self.compute_dtype),
        )

    def _store(self, weight: PackedWeight) -> None:
        self.register_buffer("weight_packed", weight.packed)
        self.register_buffer("weight_scale", weight.scale)
        self.refresh()

    def extra_repr(self) -> str:
        """The shape, then what is quantized."""
        weight = "float" if self.site.weight is None else f"W{self.site.weight.bits}"
        act = self.site.activation
        mode = "float" if act is None else f"A{act.bits} {act.mode}"
        return f"{'x'.join(map(str, self.site.shape))}, {weight}, {mode}"


class QuantLinear(QuantOperator, nn.Linear):  # type: ignore[override]
    """Linear on a quantized input with a quantized weight (Algorithm S1)."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., O], in the dtype of the input."""
        weight, bias = self._weight_and_bias()
        return F.linear(self._input(x), weight, bias).to(x.dtype)


class _QuantConv(QuantOperator):
    layout = "first"
    _conv_forward: Callable[..., Any]

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, *positions] -> [B, O, *positions], in the dtype of the input.

        Padding comes after quantization, in whatever mode: a padded pixel has the range of the
        pixel that it repeats, and zeros are exact.
        """
        if x.ndim == self._batched_ndim() - 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)  # an unbatched input, as torch takes it
        weight, bias = self._weight_and_bias()
        result: Tensor = self._conv_forward(self._input(x), weight, bias)
        return result.to(x.dtype)

    def _batched_ndim(self) -> int:
        return len(self.site.shape)


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


def _blank(site: Site) -> PackedWeight:
    assert site.weight is not None
    shape = torch.Size(site.shape)
    rows, taps, inputs = row_shape(shape)
    width = packed_width(taps * inputs, site.weight.bits)
    dtype = torch.uint8 if site.weight.bits <= NIBBLE_BITS else torch.int8
    scale = torch.zeros(rows, scale_count(shape, site.weight))
    return PackedWeight(torch.zeros(rows, width, dtype=dtype), scale, shape, site.weight)


def _radius(site: Site, radius: Tensor | None, device: torch.device, empty: bool) -> Tensor:
    if empty:
        assert site.activation is not None
        count = 1 if site.activation.mode == "per_tensor" else site.inputs
        return torch.zeros(count, device=device)
    assert radius is not None, "a static site needs calibrated radii"
    return radius.float()
