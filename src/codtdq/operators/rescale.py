"""Move per-channel scales and shifts from a norm into the operators that read it.

With x the output of a norm, the readers get x' = (x - shift) / scale instead (shift, scale: [C]):

    norm:       gamma' = gamma / scale          beta' = (beta - shift) / scale
    operators:  W'[:, c] = scale_c W[:, c]      b' = b + sum_c W[:, c] shift_c

so that W' x' + b' = W x + b: the network computes what it did before. Zeros that are padded
between the norm and an operator have to become -shift / scale. A module that pads there says so
and keeps that value itself:

    # path of the norm -> buffer [C], None until needed
    quantization = Declaration(fold_padding={"norm1": "pad_token"})
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from codtdq.declarations import declaration_of
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.trace import NormUse
from codtdq.schemes.weights import FloatWeight


def rescale_norm(
    model: nn.Module, use: NormUse, scale: Tensor, shift: Tensor | None = None
) -> None:
    """Divide the output of a norm by scale [C], after subtracting shift [C], in place.

    All operators that read it are compensated; the model's function stays the same.
    """
    reason = obstacle_to_rescaling(model, use, with_shift=shift is not None)
    if reason is not None:
        raise UnsupportedError(f"{use.name} cannot be rescaled: {reason}")
    _check_vectors(use.name, use.channels, scale, shift)
    norm = model.get_submodule(use.name)
    weight, bias = norm._parameters["weight"], norm._parameters.get("bias")
    assert weight is not None
    weight.data = (weight.data / scale).to(weight.dtype)
    if bias is not None:
        moved = bias.data if shift is None else bias.data - shift
        bias.data = (moved / scale).to(bias.dtype)
    for name in use.consumers:
        rescale_inputs(model.get_submodule(name), scale, shift)
    for owner, leaf in padding_declarations(model, use.name):
        _move_padding(owner, leaf, scale, shift)


def rescale_inputs(module: nn.Module, scale: Tensor, shift: Tensor | None = None) -> None:
    """Make a Linear or Conv expect (x - shift) / scale instead of x, in place."""
    if shift is not None and not takes_shift(module):
        raise UnsupportedError(
            f"{type(module).__name__} pads its input with zeros, which a shift would change"
        )
    weight = float_weight(module)
    if shift is not None:
        extra = torch.einsum("oc...,oc->o", weight, _columns(module, shift, weight))
        bias = module._parameters.get("bias")
        total = extra if bias is None else bias.data + extra
        module.bias = nn.Parameter(total.to(weight.dtype), requires_grad=False)
    columns = _columns(module, scale, weight)
    _set_weight(module, weight * columns.reshape(*columns.shape, *[1] * (weight.ndim - 2)))


def obstacle_to_rescaling(model: nn.Module, use: NormUse, *, with_shift: bool) -> str | None:
    """Why a norm cannot take a scale (and a shift) over; None if it can."""
    if not use.consumers:
        return "no Linear or Conv reads it"
    if not use.exclusive:
        return f"it is read by {use.other_uses[0]} too"
    norm = model.get_submodule(use.name)
    if norm._parameters.get("weight") is None:
        return "it has no affine parameters"
    if with_shift and norm._parameters.get("bias") is None:
        return "it has no bias"
    consumers = [model.get_submodule(name) for name in use.consumers]
    if tied(model, [norm, *consumers]):
        return "it shares parameters with another module"
    if with_shift:
        pads = [n for n, m in zip(use.consumers, consumers) if not takes_shift(m)]
        if pads:
            return f"{pads[0]} pads its input with zeros"
        if use.padded and not any(True for _ in padding_declarations(model, use.name)):
            return f"zeros are padded before {use.padded[0]}"
    return None


def takes_shift(module: nn.Module) -> bool:
    """Whether a constant added to the input is a constant in the output: no padding with zeros."""
    if isinstance(module, nn.Linear):
        return True
    assert isinstance(module, nn.Conv2d | nn.Conv1d)
    # "same" and explicit sizes pad; copies of inner values (reflect, ...) carry the shift along
    none = module.padding == "valid" or (
        not isinstance(module.padding, str) and not any(module.padding)
    )
    return none or module.padding_mode != "zeros"


def padding_declarations(model: nn.Module, norm: str) -> Iterator[tuple[nn.Module, str]]:
    """(module, buffer name) of every module that declares to pad after this norm."""
    parts = norm.split(".")
    for depth in range(len(parts)):
        owner = model.get_submodule(".".join(parts[:depth]))
        leaf = declaration_of(owner).fold_padding.get(".".join(parts[depth:]))
        if leaf is not None:
            yield owner, leaf


def float_weight(module: nn.Module) -> Tensor:
    """The weight of an operator that has not been quantized yet, detached."""
    if not isinstance(module, QuantOperator):
        return module.weight.detach()  # type: ignore[operator]
    if not isinstance(module.weight_scheme, FloatWeight):
        raise ConfigError("a quantized weight cannot be rescaled; rescale before quantizing it")
    return module.weight_scheme.values


def _set_weight(module: nn.Module, weight: Tensor) -> None:
    if isinstance(module, QuantOperator):
        module.exchange(weight=FloatWeight.of(weight))
    else:
        parameter = module._parameters["weight"]
        assert parameter is not None
        parameter.data = weight.to(parameter.dtype)


def _columns(module: nn.Module, values: Tensor, weight: Tensor) -> Tensor:
    """Per-input-channel values [C] as seen by each output: [O, C / groups]."""
    groups = int(getattr(module, "groups", 1))
    rows = values.to(weight).reshape(groups, -1)
    return rows.repeat_interleave(weight.shape[0] // groups, 0)


def _move_padding(owner: nn.Module, leaf: str, scale: Tensor, shift: Tensor | None) -> None:
    """The padded value is the image of what was padded before: zero at first."""
    before = owner._buffers.get(leaf)
    if before is None and shift is None:
        return
    value = torch.zeros_like(scale) if before is None else before
    owner.register_buffer(leaf, (value if shift is None else value - shift) / scale)


def tied(model: nn.Module, changed: list[nn.Module]) -> bool:
    """Whether a parameter of these modules is used twice, among them or elsewhere."""
    own = {id(p) for m in changed for p in m.parameters(recurse=False)}
    inside = {id(m) for m in changed}
    count = sum(len([p for p in m._parameters.values() if p is not None]) for m in changed)
    return len(own) < count or any(
        id(p) in own
        for m in model.modules()
        if id(m) not in inside
        for p in m.parameters(recurse=False)
    )


def _check_vectors(name: str, channels: int, scale: Tensor, shift: Tensor | None) -> None:
    for what, vector in (("scale", scale), ("shift", shift)):
        if vector is not None and tuple(vector.shape) != (channels,):
            raise ConfigError(
                f"{what} for {name} is {tuple(vector.shape)}; accepted: ({channels},)"
            )
    if not bool((scale > 0).all() and scale.isfinite().all()):
        raise ConfigError(f"scale for {name} must be positive and finite")
