"""The Triton kernels behind QuantLinear, QuantConv2d and QuantConv1d: the sibling of `cpu`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codtdq.engine.cpu.executors import folded, sides
from codtdq.engine.cpu.fit import lowered_input, lowered_weight, not_whole, padding_of
from codtdq.engine.cpu.products import Window
from codtdq.engine.fusion import activation_of
from codtdq.engine.triton.weights import SLAB, GpuWeights, group_obstacle, weight_group_obstacle
from codtdq.numerics.affine import EPS, step_of
from codtdq.numerics.grouping import split
from codtdq.numerics.projection import project
from codtdq.numerics.spec import ActivationSpec
from codtdq.operators import QuantOperator
from codtdq.operators.backed import Executor
from codtdq.planning.roles import kind_of


def unsupported_reason(operator: QuantOperator) -> str | None:
    """Why an operator stays simulated; None if there is a kernel for it."""
    reason = not_int4(operator)
    if reason is not None:
        return reason
    inputs, shared = lowered_input(operator), weight_group(operator)
    if not isinstance(inputs, Any):
        return f"its input scheme {operator.input_scheme.kind!r} has no kernel"
    act, kind = inputs.spec, kind_of(operator)
    if isinstance(operator, nn.Conv2d | nn.Conv1d):
        if operator.padding_mode != "zeros" or padding_of(operator) is None:
            return f"padding {operator.padding_mode} {operator.padding}"
        if operator.groups > 1 and kind != "depthwise":
            return f"a convolution in {operator.groups} groups"
        if kind == "depthwise" and operator.out_channels != operator.in_channels:
            return "a depthwise convolution with a channel multiplier"
    if act.mode == "per_channel" and kind != "depthwise":
        return "a range per channel does not factor out of a dense product"
    reason = group_obstacle(token_group(act))
    if reason is None and kind != "depthwise" and shared is not None:
        reason = weight_group_obstacle(operator.inputs, token_group(act), shared)
    return reason


def token_group(act: ActivationSpec) -> int:
    """Channels that share one integer sum."""
    return act.group_size if act.mode == "per_token_group" else SLAB


def projected(operator: QuantOperator) -> Any:
    """The form of an operator's input, which is known to be one that has kernels."""
    inputs = lowered_input(operator)
    assert isinstance(inputs, Any)
    return inputs


def executor_for(operator: QuantOperator) -> Executor:
    """A function that does what the operator's forward does, by kernels."""
    return _Depthwise(operator) if kind_of(operator) == "depthwise" else _Product(operator)


class _Kernels:
    """What the two kinds of operator share: their input, their epilogue, their shapes."""

    compiles = True

    def __init__(self, operator: QuantOperator) -> None:
        # Triton is imported here, not with the package; `operators` registers torch's names
        from codtdq.engine.triton import encoders, operators, products  # noqa: F401

        # no reference to the operator, which owns this: its memory goes with it at once
        self._encoders, self._products = encoders, products
        form = projected(operator)
        self._act, self._fixed = form.spec, form.radius
        self._range = None
        if self._fixed is not None:
            radius = self._fixed.float().clamp(min=EPS)
            self._range = radius, step_of(radius, self._act.bits)
        self._sides = None if isinstance(operator, nn.Linear) else sides(operator)
        self._activation = activation_of(operator.followers)
        self._shared = operator.shared

    def __call__(self, x: Tensor) -> Tensor:
        if self._sides is None:
            rows = x.reshape(-1, x.shape[-1])
            y = self._rows(rows, Window((1, 1, rows.shape[0])))
            return y.view(*x.shape[:-1], -1)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        window = Window((maps.shape[0], maps.shape[2], maps.shape[3]), *self._sides)
        y = self._rows(maps.flatten(2), window)
        y = y.view(maps.shape[0], *window.out, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        raise NotImplementedError

    def _codes(self, x: Tensor) -> Any:
        if self._shared is None or torch.compiler.is_compiling():
            return self._encode(x)
        return self._shared.codes(x, self._encode)

    def _encode(self, x: Tensor) -> Any:
        act, encoders = self._act, self._encoders
        if self._compiled(x):
            return self._encode_by_name(x)
        if act.mode == "per_token_group":
            return encoders.encode_groups(x, act)
        if self._range is not None:
            return encoders.encode_fixed(x, act.bits, *self._range, checked=True)
        if not bounded(act):
            return encoders.encode_dynamic(x, act.bits, per_channel=act.mode == "per_channel")
        return encoders.encode_fixed(x, act.bits, *shared_range(x, act, None))

    def _encode_by_name(self, x: Tensor) -> Any:
        """The same under torch's names, for a compiler to see."""
        act, Codes = self._act, self._encoders.Codes
        if act.mode == "per_token_group":
            guarded = act.projection == "guarded"
            codes, step, _ = torch.ops.codtdq.encode_groups(
                x,
                act.group_size,
                act.bits,
                act.group_size,
                act.literal,
                guarded,
                act.percentile,
                act.tau,
                act.zero_ratio,
            )
            return Codes(codes, step, act.group_size, act.bits)
        radius, step = shared_range(x, act, self._fixed)
        codes, _ = torch.ops.codtdq.encode_fixed(x, SLAB, act.bits, radius, step)
        return Codes(codes, step, SLAB, act.bits)

    def _compiled(self, x: Tensor) -> bool:
        return torch.compiler.is_compiling() and x.device.type == "cuda"


class _Product(_Kernels):
    """Linear and dense convolutions."""

    def __init__(self, operator: QuantOperator) -> None:
        super().__init__(operator)
        weight = lowered_weight(operator)
        scale = weight.scale if weight.factor is None else weight.scale * weight.factor
        scale, self._bias = folded(operator, scale)
        self._weights = GpuWeights.pack(weight.codes, scale, token_group(self._act), weight.group)
        self._fused = self._sides is None and self._products.fused_pays(
            self._act, self._weights.shape[0], shared=self._shared is not None
        )

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        kernels, weights, compiled = self._products, self._weights, self._compiled(x)
        if self._fused and not compiled:
            return kernels.fused_linear(x, self._act, weights, self._bias, self._activation)
        codes = self._codes(x)
        if not compiled:
            return kernels.product(codes, weights, window, self._bias, self._activation)
        return torch.ops.codtdq.product(
            codes.codes,
            codes.step,
            _none(codes),
            codes.bits,
            weights.packed,
            weights.scales,
            weights.shape,
            weights.group,
            0,
            *window,
            self._bias,
            self._activation,
        )


class _Depthwise(_Kernels):
    """Depthwise convolutions: taps in float32, which are few."""

    def __init__(self, operator: QuantOperator) -> None:
        super().__init__(operator)
        weight, self._bias = folded(operator, operator.weight_scheme.dequantize())
        self._taps = weight.flatten(2).squeeze(1).t().contiguous()  # [T, C]

    def _rows(self, x: Tensor, window: Window) -> Tensor:
        codes, kernels = self._codes(x), self._products
        if not self._compiled(x):
            return kernels.depthwise(codes, self._taps, window, self._bias, self._activation)
        return torch.ops.codtdq.depthwise(
            codes.codes,
            codes.step,
            _none(codes),
            codes.bits,
            codes.group,
            self._taps,
            *window,
            self._bias,
            self._activation,
        )


def _none(codes: Any) -> Tensor:
    """Sums of codes, which only the native engine's products read."""
    return codes.codes.new_empty(0, dtype=torch.int32)


def bounded(act: ActivationSpec) -> bool:
    """Whether a range is not simply the largest magnitude."""
    return act.tau is not None or act.zero_ratio is not None or act.percentile is not None


def shared_range(x: Tensor, act: ActivationSpec, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
    """(radius, step) that tokens share, [1] or [C], without waiting for the device.

    x: rows [N, C] or maps [B, C, positions]; fixed: calibrated radii.
    """
    if fixed is None and bounded(act):
        tokens = x if x.ndim == 2 else x.transpose(1, 2)
        found = project(split(tokens, act), act)
        return found.radius, found.step
    others = (0, 2)[: x.ndim - 1] if act.mode == "per_channel" else None
    largest = torch.linalg.vector_norm(x, float("inf"), dim=others).reshape(-1)
    radius = largest if fixed is None else fixed.float()
    # a NaN or an infinity in the input still shows
    radius = torch.where(largest.isfinite(), radius.clamp(min=EPS), float("nan"))
    return radius, step_of(radius, act.bits)
