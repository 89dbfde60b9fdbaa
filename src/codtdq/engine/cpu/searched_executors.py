"""The native engine behind operators of a method's own: groups on weighed grids (cod-tdq-plus)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.engine.cpu.executors import folded, sides, surround
from codtdq.engine.cpu.fit import padding_of
from codtdq.engine.cpu.products import Codes, Window, product
from codtdq.engine.cpu.searched import depthwise_pixels, encode_pixels, encode_tokens, weigh_spec
from codtdq.engine.cpu.weights import PackedWeights
from codtdq.engine.fusion import activation_of
from codtdq.errors import UnsupportedError
from codtdq.operators import SimOperator
from codtdq.operators.backed import Executor
from codtdq.schemes.lowered import EngineInput


def obstacle(operator: SimOperator) -> str | None:
    """Why an operator stays simulated; None if the engine takes it."""
    given = operator.input_quantizer.engine_form()
    if given is None:
        return f"its input scheme {operator.input_quantizer.kind!r} is only simulated"
    grid = given.grid
    if grid.obstacle() is not None:
        return grid.obstacle()
    groups = int(getattr(operator, "groups", 1))
    depthwise = groups > 1 and groups == operator.inputs
    if isinstance(operator, nn.Conv2d | nn.Conv1d):
        if padding_of(operator) is None:
            return f"padding {operator.padding} of an even kernel is not the same on both sides"
        if grid.pixels and operator.padding_mode != "zeros":
            return f"padding {operator.padding_mode} would move the pixels of a group"
    if grid.pixels:
        return None if depthwise else "a step per channel does not factor out of a dense product"
    if depthwise:
        return "token groups in front of a depthwise convolution are only simulated"
    if groups > 1:
        return f"a convolution in {groups} groups"
    if grid.group < operator.inputs and grid.group % 4:
        return f"groups of {grid.group}, no multiple of 4"
    weight = operator.weight_store.engine_form()
    if weight is None:
        return f"its weight store {operator.weight_store.kind!r} is only simulated"
    if weight.group % _stored(operator, given) and weight.group < operator.inputs:
        return f"weight groups of {weight.group} inside groups of {grid.group}"
    return None


def executor_for(operator: SimOperator) -> Executor:
    """A function that does what the operator's forward does, natively."""
    device = next(operator.weight_store.buffers()).device
    if device.type != "cpu":
        raise UnsupportedError(
            f"the native engine runs on the CPU, the weights are on {device.type}; "
            "move the model, or use_backend(model, 'reference')"
        )
    given = operator.input_quantizer.engine_form()
    assert given is not None
    return (_Depthwise if given.grid.pixels else _Product)(operator, given)


def encoding(operator: SimOperator) -> Hashable:
    """What operators must agree on to share the codes of one input."""
    given = operator.input_quantizer.engine_form()
    assert given is not None
    parts = given.transform
    change = None if parts is None else (*map(_content, parts[:3]), parts.hadamard)
    return given.grid, change, operator.inputs


class _Weighed:
    """What both kinds share: their input, their epilogue, their shapes."""

    def __init__(self, operator: SimOperator, given: EngineInput) -> None:
        # no reference to the operator, which owns this: its memory goes with it at once
        self._grid = given.grid
        self._spec = weigh_spec(given.grid, given.transform)
        linear = isinstance(operator, nn.Linear)
        self._sides = None if linear else sides(operator)
        self._surround = None if linear else surround(operator)
        self._activation = activation_of(operator.followers)
        self._shared = operator.shared

    def __call__(self, x: Tensor) -> Tensor:
        if self._sides is None:
            tokens = x.reshape(1, 1, -1) if x.ndim == 1 else x.reshape(x.shape[0], -1, x.shape[-1])
            y = self._rows(tokens, Window((1, 1, tokens.shape[0] * tokens.shape[1])))
            return y.view(*x.shape[:-1], -1)
        maps = x if x.ndim == 4 else x.unsqueeze(2)
        if self._surround is not None:
            maps = F.pad(maps, *self._surround)
        window = Window((maps.shape[0], maps.shape[2], maps.shape[3]), *self._sides)
        y = self._rows(maps.flatten(2).transpose(1, 2), window)
        y = y.view(maps.shape[0], *window.out, -1).permute(0, 3, 1, 2)
        return y if x.ndim == 4 else y.squeeze(2)

    def _codes(self, tokens: Tensor) -> Codes:
        if self._shared is None:
            return self._encode(tokens)
        return self._shared.codes(tokens.transpose(1, 2), self._encode_maps, tokens.shape[0])

    def _encode_maps(self, maps: Tensor) -> Codes:
        return self._encode(maps.transpose(1, 2))

    def _encode(self, tokens: Tensor) -> Codes:
        raise NotImplementedError

    def _rows(self, tokens: Tensor, window: Window) -> Tensor:
        raise NotImplementedError


class _Product(_Weighed):
    """Linear and dense convolutions on token groups."""

    def __init__(self, operator: SimOperator, given: EngineInput) -> None:
        super().__init__(operator, given)
        weight = operator.weight_store.engine_form()
        assert weight is not None
        self._stored = _stored(operator, given)
        factor, self._bias = folded(operator, weight.factor)
        self._weights = PackedWeights.pack(
            weight.codes, weight.scale, self._stored, weight.group, factor
        )

    def _encode(self, tokens: Tensor) -> Codes:
        return encode_tokens(tokens, self._spec, self._stored, self._grid.reach)

    def _rows(self, tokens: Tensor, window: Window) -> Tensor:
        codes = self._codes(tokens)
        return product(codes, self._weights, window, self._bias, self._activation)


class _Depthwise(_Weighed):
    """Depthwise convolutions on pixel groups: codes become floats line by line."""

    def __init__(self, operator: Any, given: EngineInput) -> None:
        super().__init__(operator, given)
        weight, bias = folded(operator, operator.weight_store.dequantize())
        taps = weight.flatten(2).squeeze(1).t()  # [T, O]
        # with a multiplier m, outputs c m .. c m + m - 1 belong to channel c
        self._times = operator.out_channels // operator.in_channels
        self._taps = [taps[:, i :: self._times].contiguous() for i in range(self._times)]
        self._biases = [
            None if bias is None else bias[i :: self._times].contiguous()
            for i in range(self._times)
        ]

    def _encode(self, tokens: Tensor) -> Codes:
        return encode_pixels(tokens, self._spec, self._grid.reach)

    def _rows(self, tokens: Tensor, window: Window) -> Tensor:
        codes = self._codes(tokens)
        parts = [
            depthwise_pixels(codes, self._grid.group, taps, window, bias, self._activation)
            for taps, bias in zip(self._taps, self._biases)
        ]
        return parts[0] if self._times == 1 else torch.stack(parts, 2).flatten(1)


def _stored(operator: SimOperator, given: EngineInput) -> int:
    """Room of a group in the codes; a single group is padded to whole words."""
    return min(given.grid.group, -(-operator.inputs // 4) * 4)


def _content(vector: Tensor | None) -> tuple[float, ...] | None:
    return None if vector is None else tuple(vector.tolist())
