"""Copies of a model whose operators an exporter can follow, one for each contract of ONNX files.

`float_twin` has plain operators that hold W_hat, `exact_twin` has operators in whole numbers. Both
tell how the weights of each are stored.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from codtdq.engine import use_backend
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.exporting.onnx_weights import StoredWeight, stored_weight, stored_whole_weight
from codtdq.numerics.carrier import exact_cuts
from codtdq.operators import quant_operators
from codtdq.operators.carried import WholeWeight
from codtdq.operators.quantized import (
    OPERATORS,
    QuantConv1d,
    QuantConv2d,
    QuantLinear,
    QuantOperator,
)
from codtdq.schemes.inputs import FloatInput
from codtdq.schemes.lowered import LoweredInput, LoweredWeight, Unlowered
from codtdq.schemes.weights import FloatWeight

FLOATS = {quant: plain for plain, quant in OPERATORS.items()}
Twin = tuple[nn.Module, dict[str, StoredWeight]]


def float_twin(model: nn.Module) -> Twin:
    """A copy with plain operators that hold W_hat: activations are float."""
    twin = _copied(model)
    weights = {}
    for name, operator in quant_operators(twin).items():
        stored = stored_weight(f"network.{name}.weight", operator)
        if stored is not None:
            weights[stored.name] = stored
        _make_plain(operator)
    return twin, weights


def exact_twin(model: nn.Module) -> Twin:
    """A copy that computes codes of activations and whole sums, in operators that ONNX has.

    Quantized operators give the bits of an engine for the same input. An operator whose input is
    float stays so.
    """
    twin = _copied(model)
    weights = {}
    for name, operator in quant_operators(twin).items():
        if isinstance(operator.input_scheme, FloatInput):
            stored = stored_weight(f"network.{name}.weight", operator)
            _make_plain(operator)
        else:
            inputs, weight = _lowered(name, operator)
            stored = stored_whole_weight(f"network.{name}.whole_values", weight)
            _make_whole(operator, weight, _cuts(name, operator, inputs, weight))
        if stored is not None:
            weights[stored.name] = stored
    return twin, weights


def _copied(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    if quant_operators(twin):
        use_backend(twin, "reference")
    return twin.eval()


def _make_plain(operator: QuantOperator) -> None:
    values = operator.weight.detach().float().contiguous()
    bias = operator._parameters.get("bias")
    operator.__class__ = FLOATS[type(operator)]  # type: ignore[assignment]
    for part in ("weight_cache", "input_scheme", "weight_scheme"):
        operator._buffers.pop(part, None)
        operator._modules.pop(part, None)
    operator._parameters = {"weight": nn.Parameter(values, requires_grad=False), "bias": bias}


def _lowered(name: str, operator: QuantOperator) -> tuple[LoweredInput, LoweredWeight]:
    """What both schemes of an operator lower to; raises where there is no exact form."""
    inputs, weight = operator.input_scheme.lower(), operator.weight_scheme.lower()
    reason = None
    if operator.compute_dtype is not torch.float32:
        reason = f"it computes in {operator.compute_dtype}"
    elif isinstance(operator.weight_scheme, FloatWeight):
        reason = "its weight stays float under a quantized input"
    elif isinstance(inputs, Unlowered):
        reason = inputs.reason
    elif isinstance(weight, Unlowered):
        reason = weight.reason
    if reason is not None:
        raise _no_form(name, operator, reason)
    assert isinstance(inputs, LoweredInput) and isinstance(weight, LoweredWeight)
    return inputs, weight


def _cuts(
    name: str, operator: QuantOperator, inputs: LoweredInput, weight: LoweredWeight
) -> tuple[int, ...]:
    """Inputs at which the sums of an operator are cut, so that float32 holds them."""
    values = weight.whole()
    seen: Tensor = torch.cat([values, values], -1) if inputs.doubled else values
    try:
        cuts = tuple(exact_cuts(seen))
    except ConfigError as error:
        raise _no_form(name, operator, str(error)) from error
    if cuts and getattr(operator, "groups", 1) > 1:
        raise _no_form(name, operator, "sums of a grouped convolution are too long for float32")
    return cuts


def _no_form(name: str, operator: QuantOperator, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} ({operator.input_scheme.kind}, {operator.weight_scheme.kind}) has no exact form "
        f"in ONNX: {reason}; use --contract portable"
    )


class _InWholeNumbers(QuantOperator):
    """An operator whose whole weight is a parameter: a graph has it under its name."""

    cuts: tuple[int, ...]

    def _whole_weight(self) -> WholeWeight:
        values, factor = self._parameters["whole_values"], self._buffers["factor"]
        assert values is not None and factor is not None
        return WholeWeight(values, factor, self.cuts)


class _WholeLinear(_InWholeNumbers, QuantLinear):  # type: ignore[override]
    pass


class _WholeConv2d(_InWholeNumbers, QuantConv2d):  # type: ignore[override]
    pass


class _WholeConv1d(_InWholeNumbers, QuantConv1d):  # type: ignore[override]
    pass


WHOLE: dict[type[nn.Module], type[_InWholeNumbers]] = {
    QuantLinear: _WholeLinear,
    QuantConv2d: _WholeConv2d,
    QuantConv1d: _WholeConv1d,
}


def _make_whole(operator: QuantOperator, weight: LoweredWeight, cuts: tuple[int, ...]) -> None:
    operator.__class__ = WHOLE[type(operator)]
    assert isinstance(operator, _InWholeNumbers)
    operator.cuts = cuts
    operator._buffers.pop("weight_cache", None)
    operator.register_buffer("factor", weight.factor)
    whole = nn.Parameter(weight.whole().float(), requires_grad=False)
    operator.register_parameter("whole_values", whole)
